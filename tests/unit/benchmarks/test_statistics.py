"""From outcomes to figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.outcome import Failure, Outcome
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.statistics import (
    FailureCount,
    Goodput,
    Measurement,
    Spread,
    percentile,
    spread_ms,
    summarize,
)
from tandem_engine.simulate.workload import Shape

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


@given(VALUES, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))

    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(VALUES)
def test_a_spread_is_in_order_and_within_its_values(values: list[float]) -> None:
    spread = spread_ms(values)

    assert spread is not None
    assert min(values) * 1000 <= spread.p50 <= spread.p90 <= spread.p99 <= max(values) * 1000
    assert spread.mean == pytest.approx(float(np.mean(values)) * 1000, abs=1e-6)


def test_nothing_has_no_spread() -> None:
    assert spread_ms([]) is None


def answered(due_s: float, *times_s: float, num_output: int) -> Outcome:
    return Outcome(
        shape=Shape(10, num_output), due_s=due_s, end_s=times_s[-1], event_times_s=times_s
    )


def failed(reason: str, message: str = "Sorry.") -> Outcome:
    return Outcome(shape=Shape(10, 4), due_s=0.0, end_s=1.0, failure=Failure(reason, message))


def measurement(*outcomes: Outcome) -> Measurement:
    return Measurement(name="1x10x4", outcomes=outcomes, wall_s=4.0, client_cpu_s=0.2)


def test_figures_of_one_request_can_be_worked_out_on_paper() -> None:
    seen = measurement(answered(1.0, 1.5, 1.6, 1.8, num_output=3))

    summary = summarize(seen, LatencyTargets())

    assert summary.ttft_ms == Spread(mean=500, p50=500, p90=500, p99=500)
    assert summary.tpot_ms is not None
    assert summary.tpot_ms.p50 == pytest.approx(150)
    assert summary.itl_ms is not None
    assert summary.itl_ms.mean == pytest.approx(150)
    assert summary.itl_ms.p90 == pytest.approx(190)
    assert summary.e2e_ms is not None
    assert summary.e2e_ms.mean == pytest.approx(800)
    assert summary.output_tokens_per_s == 0.75
    assert summary.total_tokens_per_s == 3.25
    assert summary.client_cpu_share == pytest.approx(0.05)
    assert summary.goodput is None
    assert summary.events_per_token == 1


def test_tokens_that_share_an_event_still_count_in_tpot() -> None:
    assert answered(0.0, 1.0, 2.0, num_output=5).tpot_s == 0.25


def test_one_token_has_no_time_per_further_token() -> None:
    summary = summarize(measurement(answered(0.0, 1.0, num_output=1)), LatencyTargets(tpot_ms=1.0))

    assert summary.tpot_ms is None
    assert summary.goodput == Goodput(share=1.0, requests_per_s=0.25)


def test_goodput_wants_both_targets_kept_and_counts_failures_as_broken() -> None:
    seen = measurement(
        answered(0.0, 0.1, 0.2, num_output=2),
        answered(0.0, 0.4, 0.5, num_output=2),  # late
        answered(0.0, 0.1, 0.9, num_output=2),  # slow
        failed("HTTP 429"),
    )

    summary = summarize(seen, LatencyTargets(ttft_ms=200, tpot_ms=200))

    assert summary.goodput == Goodput(share=0.25, requests_per_s=0.25)


def test_failures_are_counted_by_reason_and_have_no_latency() -> None:
    seen = measurement(failed("timeout"), failed("HTTP 429", "Full."), failed("HTTP 429", "Busy."))

    summary = summarize(seen, LatencyTargets())

    assert summary.failures == (
        FailureCount(reason="HTTP 429", count=2, example="Full."),
        FailureCount(reason="timeout", count=1, example="Sorry."),
    )
    assert (summary.num_requests, summary.num_failed) == (3, 3)
    assert (summary.output_tokens_per_s, summary.ttft_ms) == (0, None)
