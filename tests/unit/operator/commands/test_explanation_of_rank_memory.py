"""The memory of ranks in an explanation."""

import pytest

from tandem_operator.commands.replica_lines import memory_lines
from tests.unit.operator.commands.test_explanation import NOW, READY, Object, service, status

MIB, GIB = 2**20, 2**30


def explained(*memory: Object) -> list[str]:
    found = service(status(READY, ready=1))
    if memory:
        found["status"]["ranks"] = {"memory": list(memory), "measuredAt": NOW, "replicas": 1}
    return memory_lines(found, NOW)


def rank(number: int, *, process: int = 500, **others: int) -> Object:
    sizes = {"processBytes": process * MIB, "weightsBytes": 2 * MIB, "kvCacheBytes": 3 * GIB}
    return {"rank": number, **sizes, **others}


def test_ranks_that_hold_the_same_are_one_line() -> None:
    shared = [rank(number, process=500 + number, stepBytes=MIB) for number in range(3)]

    assert explained(*shared, rank(3)) == [
        "Each of ranks 0 to 2: weights 2.0 MiB, largest step 1.0 MiB, KV cache 3.0 GiB, process "
        "502.0 MiB; read 0s ago.",
        "Rank 3: weights 2.0 MiB, KV cache 3.0 GiB, process 500.0 MiB; read 0s ago.",
    ]


def test_a_replica_of_one_process_has_one_line() -> None:
    assert explained(rank(0, hostCacheBytes=GIB)) == [
        "A replica: weights 2.0 MiB, KV cache 3.0 GiB, host blocks 1.0 GiB, process 500.0 MiB; "
        "read 0s ago."
    ]


UNKNOWN = (
    "what weights, KV cache and largest step take of it is not known before a replica has started "
    "and been read"
)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({}, f"A replica may take 4.0 GiB; {UNKNOWN}."),
        (
            {"engine": {"parallelism": {"tp": 2, "pp": 2}}, "resources": {"memory": "6Gi"}},
            f"Each of 4 ranks may take 1.5 GiB; {UNKNOWN}; tandem validate estimates it where the "
            "checkpoint's config.json is.",
        ),
        (
            {"resources": {"npu": 1}},
            "A replica has a card; its memory, and what weights, KV cache and largest step take of "
            "it, is not known before a replica has started and been read.",
        ),
        ({"resources": {"memory": "much"}}, "No replica has been read yet."),
    ],
    ids=["one process", "ranks", "a card", "refused"],
)
def test_before_a_replica_is_read_the_manifest_says_what_a_rank_may_take(
    spec: Object, line: str
) -> None:
    found = service(None)
    found["spec"] |= spec

    assert memory_lines(found, NOW) == [line]
