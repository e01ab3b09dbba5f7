"""Ranks of a replica that are refused."""

from collections.abc import Iterator
from typing import Final

from tests.unit.operator.crd.forms import Bad, wrong_value

RANKS: Final = "spec.engine.parallelism"


def bad_ranks() -> Iterator[Bad]:
    """One for every rule, and for both ends of every range."""
    for name in ("worldSize", "tp", "pp"):
        path = f"{RANKS}.{name}"
        yield wrong_value(path, 0, "greater than or equal to 1", "allowed: 1 to 64")
        yield wrong_value(path, 65, "less than or equal to 64", "allowed: 1 to 64")
    yield wrong_value(f"{RANKS}.dp", 0, "0 is neither -1 (off) nor a number of groups; allowed: -1")
    yield wrong_value(f"{RANKS}.dp", -2, "greater than or equal to -1", "allowed: -1 to 64")
    yield Bad(
        "sequence parallel alone",
        {f"{RANKS}.sp": True, f"{RANKS}.pp": 2, "spec.resources.cpu": 2},
        f"{RANKS}.sp",
        "sp true needs tp of 2 or more, not 1: the ranks of tp share the tokens; raise tp or leave",
    )
    yield _bad(
        "degrees that are not the world",
        {"worldSize": 4, "tp": 4, "pp": 2},
        "worldSize",
        "worldSize 4 is not tp 4 · pp 2 · dp 1, which are 8 ranks; set worldSize to 8, leave",
    )
    yield _bad(
        "a world that stages cannot share",
        {"worldSize": 6, "pp": 4, "dp": -1},
        "worldSize",
        "worldSize 6 cannot be shared by pp 4 · dp 1 evenly; set worldSize to a multiple of 4, or",
    )
    yield _bad(
        "more ranks than a replica may have",
        {"tp": 16, "pp": 4, "dp": 2},
        "tp",
        "tp 16 · pp 4 · dp 2 are 128 ranks, and a replica has at most 64; lower one of the three",
    )
    yield Bad(
        "more ranks than threads",
        {f"{RANKS}.worldSize": 4, "spec.resources.cpu": 3},
        "spec.resources.cpu",
        "resources.cpu 3 leaves some of the 4 ranks of engine.parallelism without a thread; set "
        "cpu to 4 or more",
    )
    yield Bad(
        "cards that are not one for each rank",
        {f"{RANKS}.tp": 2, "spec.resources.cpu": 2, "spec.resources.npu": 3},
        "spec.resources.npu",
        "resources.npu 3 is not the 2 of engine.parallelism's ranks, each of which computes on "
        "one card; set npu: 2",
    )


def _bad(fault: str, degrees: dict[str, int], field: str, words: str) -> Bad:
    changes = {f"{RANKS}.{name}": value for name, value in degrees.items()}
    return Bad(fault, changes | {"spec.resources.cpu": 128}, f"{RANKS}.{field}", words)
