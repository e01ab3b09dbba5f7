"""status.ranks: what is told, and when it is written once more."""

import pytest

from tandem_operator.crd.status_schema import status_schema
from tandem_operator.ranks.document import PART_FIELDS, Document, is_due, ranks_document

NOW, LATER = "2026-11-24T10:00:00Z", "2026-11-24T11:00:00Z"


def document(*replicas: int, now: str = NOW, ranks: int = 2) -> Document:
    """Of replicas that give so many bytes of each rank to weights."""
    parts = [{rank: {"weights": size, "step": 1} for rank in range(ranks)} for size in replicas]
    found = ranks_document(parts, now)
    assert found
    return found


def test_of_several_replicas_the_fullest_rank_is_told() -> None:
    rank = {"weightsBytes": 900, "stepBytes": 1}

    assert document(800, 900) == {
        "replicas": 2,
        "measuredAt": NOW,
        "memory": [{"rank": 0} | rank, {"rank": 1} | rank],
    }
    assert ranks_document([], NOW) is None


def test_a_rank_that_one_replica_lacks_is_that_of_the_other() -> None:
    found = ranks_document([{0: {"weights": 1}}, {1: {"kv_cache": 2}}], NOW)

    assert found
    assert found["memory"] == [{"rank": 0, "weightsBytes": 1}, {"rank": 1, "kvCacheBytes": 2}]


@pytest.mark.parametrize(
    ("after", "due"),
    [
        (document(1000, now=LATER), False),
        (document(1010), False),
        (document(1100), True),
        (document(1000, 1000), True),
        (document(1000, ranks=4), True),
    ],
)
def test_it_is_written_where_it_says_something_else(after: Document, *, due: bool) -> None:
    assert is_due(document(1000), after) == due
    assert is_due(None, after)


def test_every_field_is_in_the_schema() -> None:
    rank = status_schema()["properties"]["ranks"]["properties"]["memory"]["items"]["properties"]

    assert {*rank} == {"rank", *PART_FIELDS.values()}
