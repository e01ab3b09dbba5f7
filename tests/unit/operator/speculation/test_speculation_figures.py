"""Draft tokens out of a replica's own metrics, whatever is in them."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.drafts import DraftMethod
from tandem_engine.api.output import DraftCounts
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_operator.speculation.figures import Drafts, read_drafts
from tests.unit.engine.test_metrics import STATS

COUNTS: Mapping[DraftMethod, DraftCounts] = {
    "ngram": DraftCounts(num_drafted=10, accepted=(3, 1)),
    "draft": DraftCounts(num_drafted=0, accepted=(0, 0)),
}


def page(counts: Mapping[DraftMethod, DraftCounts] = COUNTS) -> bytes:
    """What a replica shows, by the engine's own code."""
    metrics = EngineMetrics("Tiny-1.5_a", aliases=("vllm", "mindie"))
    metrics.state(replace(STATS, drafts=counts))
    return metrics.text()


def test_the_figures_are_those_that_the_engine_shows() -> None:
    assert read_drafts(page()) == {"ngram": Drafts(10, 4), "draft": Drafts(0, 0)}


def test_a_replica_without_speculation_has_no_figures() -> None:
    assert read_drafts(page({})) is None


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"x", b"-1"])
def test_what_is_no_count_is_no_figure(value: bytes) -> None:
    assert read_drafts(page().replace(b"} 10.0\n", b"} " + value + b"\n")) is None


@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_any_page_is_read_or_is_none(noise: bytes, at: int) -> None:
    text = page()
    read_drafts(noise)
    read_drafts(text[:at] + noise + text[at:])
    read_drafts(text[:at])
