"""Figures of micro-batches out of a replica's own metrics, whatever is in them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_operator.micro_batches.figures import Figures, read_figures
from tests.unit.engine.test_metrics import MICRO_BATCHES, STATS

FOUND = Figures(cuts_prefill=True, cuts_decode=False, overlap=0.9, cost=7, num_kv_blocks=10)


def page(**changes: object) -> bytes:
    """What a replica shows, by the engine's own code."""
    metrics = EngineMetrics("Tiny-1.5_a", aliases=("vllm", "mindie"))
    metrics.state(STATS)
    metrics.watch_micro_batches(lambda: replace(MICRO_BATCHES, **changes))  # type: ignore[arg-type]
    return metrics.text()


def test_the_figures_are_those_that_the_engine_shows() -> None:
    assert read_figures(page()) == FOUND
    assert read_figures(page(overlap=None)) == replace(FOUND, overlap=None)


def test_a_replica_without_micro_batches_has_no_figures() -> None:
    metrics = EngineMetrics("tiny")
    metrics.state(STATS)

    assert read_figures(metrics.text()) is None


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"x"])
def test_what_is_no_number_is_no_figure(value: bytes) -> None:
    assert read_figures(page().replace(b"} 0.9\n", b"} " + value + b"\n")) is None


@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_any_page_is_read_or_is_none(noise: bytes, at: int) -> None:
    text = page()
    read_figures(noise)
    read_figures(text[:at] + noise + text[at:])
    read_figures(text[:at])
