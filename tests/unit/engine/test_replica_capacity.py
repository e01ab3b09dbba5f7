"""The load that a replica is predicted to carry: bounds, and how it follows what it depends on."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.latency.capacity import (
    CapacityBound,
    ReplicaLimits,
    RequestShape,
    capacity,
    zero_load_tpot_s,
    zero_load_ttft_s,
)
from tandem_engine.scheduler.latency.step_model import Coefficients, StepPrices

PRICES = StepPrices(
    Coefficients(base=5e-3, token=1e-4, chunk_context=4e-9, decode_context=1e-7, row=5e-5),
    knee=64,
)
SHAPE = RequestShape.of(prompt=1000, output=200)
LIMITS = ReplicaLimits(max_rows=200, max_tokens=2048, num_blocks=2400, block_size=128)


def slo(ttft_s: float | None = 1.5, tpot_s: float | None = 0.05, percentile: int = 90) -> Slo:
    def target(seconds: float | None) -> LatencyTarget | None:
        text = None if seconds is None else f"{seconds * 1e3:.3f}ms"
        return text and LatencyTarget(target=text, percentile=percentile)  # type: ignore[return-value]

    return Slo(ttft=target(ttft_s), tpot=target(tpot_s))


def rate(
    prices: StepPrices = PRICES,
    shape: RequestShape = SHAPE,
    limits: ReplicaLimits = LIMITS,
    targets: Slo | None = None,
) -> float:
    return capacity(prices, shape, limits, targets or slo()).requests_per_s


FACTORS = st.floats(min_value=1.0, max_value=4.0)
SHAPES = st.builds(
    RequestShape.of,
    prompt=st.floats(min_value=1.0, max_value=20_000.0),
    output=st.floats(min_value=1.0, max_value=2_000.0),
)
ALL_PRICES = st.builds(
    lambda base, token, pair, cached, row, knee: StepPrices(
        Coefficients(base, token, pair, cached, row), knee
    ),
    base=st.floats(min_value=0.0, max_value=0.05),
    token=st.floats(min_value=0.0, max_value=1e-3),
    pair=st.floats(min_value=0.0, max_value=1e-7),
    cached=st.floats(min_value=0.0, max_value=1e-6),
    row=st.floats(min_value=0.0, max_value=1e-3),
    knee=st.sampled_from([0, 64, 384]),
)
ALL_LIMITS = st.builds(
    ReplicaLimits,
    max_rows=st.integers(min_value=1, max_value=500),
    max_tokens=st.integers(min_value=16, max_value=8192),
    num_blocks=st.integers(min_value=10, max_value=10_000),
    block_size=st.just(128),
    mixes=st.booleans(),
)
TARGETS = st.builds(
    slo,
    ttft_s=st.one_of(st.none(), st.floats(min_value=0.05, max_value=10.0)),
    tpot_s=st.one_of(st.none(), st.floats(min_value=0.005, max_value=0.5)),
)


def no_less(more: float, less: float) -> bool:
    """True but for the rounding of the search."""
    return more >= less * (1.0 - 1e-6) - 1e-12


@given(ALL_PRICES, SHAPES, ALL_LIMITS, TARGETS, FACTORS, FACTORS)
def test_laxer_targets_never_lower_it(
    prices: StepPrices,
    shape: RequestShape,
    limits: ReplicaLimits,
    targets: Slo,
    ttft: float,
    tpot: float,
) -> None:
    laxer = slo(
        None if targets.ttft_s is None else ttft * targets.ttft_s,
        None if targets.tpot_s is None else tpot * targets.tpot_s,
    )

    assert no_less(rate(prices, shape, limits, laxer), rate(prices, shape, limits, targets))


@given(ALL_PRICES, SHAPES, ALL_LIMITS, TARGETS, st.lists(FACTORS, min_size=5, max_size=5))
def test_a_slower_machine_never_raises_it(
    prices: StepPrices,
    shape: RequestShape,
    limits: ReplicaLimits,
    targets: Slo,
    factors: list[float],
) -> None:
    pairs = zip(prices.coefficients, factors, strict=True)
    slower = prices._replace(
        coefficients=Coefficients(*(price * factor for price, factor in pairs))
    )

    assert no_less(rate(prices, shape, limits, targets), rate(slower, shape, limits, targets))


@given(ALL_PRICES, SHAPES, ALL_LIMITS, TARGETS, FACTORS, FACTORS, FACTORS)
def test_more_memory_rows_or_tokens_never_lower_it(
    prices: StepPrices,
    shape: RequestShape,
    limits: ReplicaLimits,
    targets: Slo,
    blocks: float,
    rows: float,
    tokens: float,
) -> None:
    larger = replace(
        limits,
        num_blocks=int(blocks * limits.num_blocks),
        max_rows=int(rows * limits.max_rows),
        max_tokens=int(tokens * limits.max_tokens),
    )

    assert no_less(rate(prices, shape, larger, targets), rate(prices, shape, limits, targets))


@given(ALL_PRICES, SHAPES, ALL_LIMITS, TARGETS, FACTORS)
def test_longer_answers_never_raise_it(
    prices: StepPrices, shape: RequestShape, limits: ReplicaLimits, targets: Slo, factor: float
) -> None:
    longer = RequestShape.of(shape.prompt, factor * shape.output)

    assert no_less(rate(prices, shape, limits, targets), rate(prices, longer, limits, targets))


@given(ALL_PRICES, SHAPES, ALL_LIMITS, TARGETS)
def test_it_is_finite_and_zero_where_a_lone_request_misses_a_target(
    prices: StepPrices, shape: RequestShape, limits: ReplicaLimits, targets: Slo
) -> None:
    found = capacity(prices, shape, limits, targets)

    assert 0.0 <= found.requests_per_s < float("inf")
    if zero_load_tpot_s(prices, shape) > (targets.tpot_s or float("inf")):
        assert found.requests_per_s == 0.0


@pytest.mark.parametrize(
    ("limits", "targets", "bound"),
    [
        (LIMITS, slo(ttft_s=None, tpot_s=0.02), CapacityBound.TPOT),
        (LIMITS, slo(ttft_s=0.2, tpot_s=1.0), CapacityBound.TTFT),
        (replace(LIMITS, max_rows=5), slo(), CapacityBound.BATCH_SIZE),
        (replace(LIMITS, num_blocks=40), slo(), CapacityBound.KV_BLOCKS),
    ],
)
def test_it_names_what_more_would_break(
    limits: ReplicaLimits, targets: Slo, bound: CapacityBound
) -> None:
    found = capacity(PRICES, SHAPE, limits, targets)

    assert found.requests_per_s > 0.0
    assert found.bound_by is bound


@pytest.mark.parametrize(
    ("limits", "targets", "bound"),
    [
        (LIMITS, slo(ttft_s=0.05), CapacityBound.TTFT),
        (LIMITS, slo(tpot_s=0.005), CapacityBound.TPOT),
        (replace(LIMITS, num_blocks=9), slo(), CapacityBound.KV_BLOCKS),
    ],
)
def test_targets_that_no_request_can_keep_leave_no_load(
    limits: ReplicaLimits, targets: Slo, bound: CapacityBound
) -> None:
    found = capacity(PRICES, SHAPE, limits, targets)

    assert (found.requests_per_s, found.bound_by) == (0.0, bound)


def test_a_lower_percentile_carries_more() -> None:
    strict, lax = slo(ttft_s=0.4, percentile=99), slo(ttft_s=0.4, percentile=50)

    assert rate(targets=lax) > rate(targets=strict) > 0.0


def test_a_prefix_in_the_cache_raises_it() -> None:
    cached = replace(SHAPE, computed=200.0, pairs=(1000.0**2 - 800.0**2) / 2.0)

    assert rate(shape=cached) > 1.5 * rate()


def test_zero_load_latencies_are_sums_of_predicted_steps() -> None:
    base, token, pair, cached, row = PRICES.coefficients
    shape = RequestShape.of(prompt=3000, output=101)

    # Two steps: 2048 and 952 tokens.
    expected = 2 * base + token * 3000 + pair * 3000**2 / 2 + 2 * row
    assert zero_load_ttft_s(PRICES, shape, LIMITS) == pytest.approx(expected)
    # A row of one token costs as many as the knee.
    expected = base + token * 64 + cached * 3050 + row
    assert zero_load_tpot_s(PRICES, shape) == pytest.approx(expected, rel=1e-3)


def test_limits_are_those_of_the_schedule() -> None:
    mixed = ScheduleConfig(
        template_type="Mix", max_batch_size=64, split_fuse=SplitFuseConfig(split_chunk_tokens=512)
    )
    of_stages = ScheduleConfig(max_prefill_tokens=4096)

    assert ReplicaLimits.of(mixed, 100).max_tokens == 512
    assert ReplicaLimits.of(mixed, 100).max_rows == 64
    assert ReplicaLimits.of(of_stages, 100).max_tokens == 4096
    assert not ReplicaLimits.of(of_stages, 100).mixes


def test_prompts_of_many_lengths_wait_for_longer_and_carry_less() -> None:
    bound = slo(ttft_s=0.4)

    assert rate(targets=bound, shape=replace(SHAPE, spread=3.0)) < rate(targets=bound)


def test_a_machine_on_which_only_steps_cost_is_bound_by_its_rows() -> None:
    free = PRICES._replace(coefficients=Coefficients(5e-3, 0.0, 0.0, 0.0, 0.0))

    found = capacity(free, SHAPE, LIMITS, slo())
    assert 0.0 < found.requests_per_s < float("inf")
    assert found.bound_by in {CapacityBound.BATCH_SIZE, CapacityBound.KV_BLOCKS}


def test_the_concurrency_is_the_rate_times_the_stay() -> None:
    found = capacity(PRICES, SHAPE, LIMITS, slo())
    stay_s = found.concurrency / found.requests_per_s
    alone_s = zero_load_ttft_s(PRICES, SHAPE, LIMITS) + SHAPE.num_decodes * zero_load_tpot_s(
        PRICES, SHAPE
    )
    targets = slo()
    assert targets.ttft_s is not None
    assert targets.tpot_s is not None

    assert alone_s < stay_s < targets.ttft_s + SHAPE.num_decodes * targets.tpot_s


@given(
    prices=ALL_PRICES,
    shape=SHAPES,
    targets=st.sampled_from([slo(), slo(ttft_s=None), slo(tpot_s=None)]),
)
def test_the_concurrency_is_a_number(prices: StepPrices, shape: RequestShape, targets: Slo) -> None:
    found = capacity(prices, shape, LIMITS, targets)

    assert 0.0 <= found.concurrency < inf


def test_no_request_is_ongoing_where_none_keeps_the_targets() -> None:
    assert capacity(PRICES, SHAPE, LIMITS, slo(ttft_s=0.001)).concurrency == 0.0


def test_the_mean_of_requests_that_are_alike_is_one_of_them() -> None:
    assert RequestShape.mean_of([(1000, 0, 200)] * 3) == SHAPE


def test_the_mean_counts_what_is_computed_and_read() -> None:
    # Of the second prompt 200 tokens are computed, behind 600 others; it is answered by one token.
    mean = RequestShape.mean_of([(400, 0, 11), (800, 600, 1)])

    assert (mean.prompt, mean.output, mean.computed) == (600, 6, 300)
    assert mean.pairs == (400 * 200 + 200 * 700) / 2
    assert mean.context == 405.5
    assert mean.spread == pytest.approx((400**2 + 800**2) / 2 / 600**2)


def test_the_mean_of_single_tokens_reads_their_prompts() -> None:
    assert RequestShape.mean_of([(10, 0, 1), (30, 0, 1)]).context == 20
