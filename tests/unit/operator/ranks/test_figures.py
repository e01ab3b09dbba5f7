"""Memory of ranks out of a replica's own metrics, whatever is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_operator.ranks.figures import read_rank_parts


def page(*, weights: int = 4, process: int = 100, step: int = 0) -> bytes:
    """What a replica of two ranks shows, by the engine's own code."""
    ranks = [
        RankBytes(rank=rank, process=process, weights=weights, kv_cache=3 << 33, step=step)
        for rank in (0, 1)
    ]
    return EngineMetrics("Tiny-1.5_a", aliases=("vllm", "mindie"), ranks=ranks).text()


def test_the_parts_are_those_that_the_engine_shows() -> None:
    parts = {"process": 100, "weights": 4, "kv_cache": 3 << 33}

    assert read_rank_parts(page()) == {0: parts, 1: parts}
    assert read_rank_parts(EngineMetrics("tiny").text()) is None


@pytest.mark.parametrize("value", [b"1e99", b"e", b"..", b"NaN", b"-1"])
def test_what_is_no_size_is_not_read(value: bytes) -> None:
    found = read_rank_parts(page().replace(b"} 4.0\n", b"} " + value + b"\n"))

    assert found is None or "weights" not in found[0]


@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_any_page_is_read_or_is_none(noise: bytes, at: int) -> None:
    text = page()
    read_rank_parts(noise)
    read_rank_parts(text[:at] + noise + text[at:])
    read_rank_parts(text[:at])
