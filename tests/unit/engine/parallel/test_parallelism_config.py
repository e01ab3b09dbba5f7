"""spec.engine.parallelism: MindIE's arithmetic, and refusals that say what would do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tandem_engine.api.config import EngineConfig, ParallelismConfig

DEGREES = st.integers(1, 6)


def refusal(written: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        ParallelismConfig.model_validate(written)
    return str(refused.value)


@pytest.mark.parametrize(
    ("written", "tp", "dp", "ranks"),
    [
        ({}, 1, 1, 1),
        ({"worldSize": 4}, 4, 1, 4),
        ({"tp": 2}, 2, 1, 2),
        ({"worldSize": 8, "pp": 2, "dp": 2}, 2, 2, 8),
        ({"worldSize": 4, "tp": 2, "pp": 2, "dp": 1, "sp": False}, 2, 1, 4),
        ({"worldSize": 2, "dp": -1, "sp": True}, 2, 1, 2),
        ({"worldSize": 64}, 64, 1, 64),
    ],
)
def test_what_is_absent_follows_from_the_rest(
    written: dict[str, Any], tp: int, dp: int, ranks: int
) -> None:
    config = ParallelismConfig.model_validate(written)

    assert (config.num_tp, config.num_dp, config.ranks) == (tp, dp, ranks)


@given(DEGREES, DEGREES, DEGREES)
def test_the_degrees_and_their_product_mean_the_same(tp: int, pp: int, dp: int) -> None:
    whole = {"pp": pp, "dp": dp}
    if tp * pp * dp > 64:
        assert "at most 64" in refusal({"tp": tp, **whole})
        return

    by_degrees = ParallelismConfig.model_validate({"tp": tp, **whole})
    by_ranks = ParallelismConfig.model_validate({"worldSize": tp * pp * dp, **whole})

    assert by_degrees.ranks == by_ranks.ranks == tp * pp * dp
    assert by_degrees.num_tp == by_ranks.num_tp == tp


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            {"worldSize": 4, "tp": 4, "pp": 2},
            "worldSize 4 is not tp 4 · pp 2 · dp 1, which are 8 ranks; set worldSize to 8, leave "
            "worldSize out, or change a degree",
        ),
        (
            {"worldSize": 6, "pp": 2, "dp": 2},
            "worldSize 6 cannot be shared by pp 2 · dp 2 evenly; set worldSize to a multiple of 4, "
            "or lower pp or dp",
        ),
        (
            {"tp": 8, "pp": 8, "dp": 2},
            "tp 8 · pp 8 · dp 2 are 128 ranks, and a replica has at most 64; lower one of the "
            "three",
        ),
        (
            {"worldSize": 64, "tp": 64, "pp": 2},
            "tp 64 · pp 2 · dp 1 are 128 ranks, and a replica has at most 64",
        ),
        (
            {"worldSize": 2, "pp": 2, "sp": True},
            "sp true needs tp of 2 or more, not 1: the ranks of tp share the tokens; raise tp or "
            "leave sp out",
        ),
        ({"dp": 0}, "0 is neither -1 (off) nor a number of groups; allowed: -1, or 1 to 64"),
        ({"dp": -2}, "greater than or equal to -1"),
        ({"tp": 0}, "greater than or equal to 1"),
        ({"worldSize": 65}, "less than or equal to 64"),
        ({"sp": 2}, "valid boolean"),
        ({"wordSize": 2}, "unknown field 'wordSize'; did you mean 'worldSize'?"),
    ],
)
def test_a_refusal_says_what_would_do(written: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(written)


def test_every_rank_needs_a_thread() -> None:
    def engine(threads: int) -> EngineConfig:
        parallelism = ParallelismConfig(tp=2, dp=2)
        return EngineConfig(model_path="/m", num_threads=threads, parallelism=parallelism)

    assert engine(4).parallelism.ranks == 4
    with pytest.raises(ValidationError, match="numThreads 3 leaves some of the 4 ranks of para"):
        engine(3)
