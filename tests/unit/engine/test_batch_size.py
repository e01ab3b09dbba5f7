"""How many sequences may run: as configured, by MindIE's bisection, by prediction."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.latency.step_model import Coefficients, StepTimeModel
from tandem_engine.scheduler.policies.batch_size import BatchSizeView, batch_size_for
from tandem_engine.scheduler.policies.batch_size.batch_size_policy import FixedBatchSize
from tandem_engine.scheduler.policies.batch_size.bisection import WINDOW, BisectedBatchSize
from tandem_engine.scheduler.policies.batch_size.predicted import PredictedBatchSize
from tandem_engine.scheduler.step_rows import BatchLimits


def view(num_running: int = 0, num_waiting: int = 0, **given: Any) -> BatchSizeView:
    return BatchSizeView(num_running=num_running, num_waiting=num_waiting, **given)


def schedule(**given: Any) -> ScheduleConfig:
    return ScheduleConfig(**given)


def test_which_policy_the_settings_ask_for() -> None:
    latency = Slo(tpot=LatencyTarget(target="50ms"))
    dynamic = schedule(dynamic_batch_size_enable=True)
    model = StepTimeModel()

    assert isinstance(batch_size_for(schedule(), Slo(), model), FixedBatchSize)
    assert isinstance(batch_size_for(schedule(), latency, model), PredictedBatchSize)
    assert isinstance(batch_size_for(dynamic, Slo(), model), BisectedBatchSize)
    assert isinstance(batch_size_for(dynamic, latency, model), BisectedBatchSize)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, (200, 50)),
        ({"max_prefill_batch_size": 0}, (200, 200)),
        ({"max_batch_size": 20}, (20, 20)),
    ],
)
def test_fixed_sizes_are_the_configured_ones(
    given: dict[str, Any], limits: tuple[int, int]
) -> None:
    assert FixedBatchSize().limits(view(7, 7), schedule(**given)) == limits


# ── bisection ────────────────────────────────────────────────────────────────────────────────

SLOW, RIGHT, FAST = 0.080, 0.052, 0.020
"""Decode latencies in seconds, against decodeExpectedTime 50 ms."""


def measured(latency_s: float, rows: int, times: int = 1) -> BisectedBatchSize:
    """A window of ten steps, so that one sample fills a tenth of it."""
    policy = BisectedBatchSize(window=10)
    for _ in range(times):
        policy.observe_decode(latency_s, rows)
    return policy


def limits_of(
    policy: BisectedBatchSize, running: list[int], settings: ScheduleConfig | None = None
) -> list[BatchLimits]:
    return [policy.limits(view(each), settings or schedule()) for each in running]


def test_the_configured_sizes_hold_until_a_tenth_of_the_window_is_filled() -> None:
    policy = BisectedBatchSize()
    for _ in range(WINDOW // 10 - 1):
        policy.observe_decode(FAST, 40)

    assert WINDOW == 20_000
    assert policy.limits(view(), schedule()) == (200, 50)
    policy.observe_decode(FAST, 40)
    # It starts from 3, and the first even step moves by 2.
    assert policy.limits(view(), schedule()) == (5, 5)


@pytest.mark.parametrize(
    ("latency_s", "rows", "bounds"),
    [
        pytest.param(SLOW, 40, (3, 40), id="too slow: U = max(40, 3 + 3), L = max(3 − 2, 3)"),
        pytest.param(SLOW, 4, (3, 6), id="too slow with a small batch: U = max(4, 3 + 3)"),
        pytest.param(FAST, 40, (40, 200), id="too fast: L = min(40, 200 − 3), U = 200 at most"),
        pytest.param(FAST, 199, (197, 200), id="too fast with a large batch: L = min(199, 197)"),
        pytest.param(FAST, 1, (3, 200), id="L is never under 3"),
        pytest.param(RIGHT, 40, (38, 43), id="in the dead band: U = 40 + 3, L = 40 − 2"),
        pytest.param(RIGHT, 199, (197, 200), id="bounded above"),
        pytest.param(RIGHT, 4, (3, 7), id="bounded below"),
        pytest.param(0.055, 40, (38, 43), id="5 ms over the target is in the band"),
        pytest.param(0.0551, 40, (3, 40), id="more is not"),
        pytest.param(0.045, 40, (38, 43), id="5 ms under the target is in the band"),
        pytest.param(0.0449, 40, (40, 200), id="less is not"),
    ],
)
def test_an_even_step_moves_the_bounds(
    latency_s: float, rows: int, bounds: tuple[int, int]
) -> None:
    policy = measured(latency_s, rows)
    policy.limits(view(), schedule())

    assert (policy._lower, policy._upper) == bounds


@pytest.mark.parametrize(
    ("latency_s", "bounds"),
    [
        pytest.param(SLOW, (36, 41), id="too slow: U = max(40, 38 + 3), L = 38 − 2"),
        pytest.param(FAST, (40, 45), id="too fast: L = min(40, 43 − 3), U = 43 + 2"),
    ],
)
def test_the_next_even_step_goes_on_from_the_bounds_of_the_last(
    latency_s: float, bounds: tuple[int, int]
) -> None:
    policy = measured(RIGHT, 40)
    limits_of(policy, [0, 0])
    for _ in range(10):
        policy.observe_decode(latency_s, 40)
    limits_of(policy, [0])

    assert (policy._lower, policy._upper) == bounds


def test_the_batch_grows_by_two_in_every_second_step() -> None:
    # L = 40, U = 200: the middle is 120, out of reach.
    assert limits_of(measured(FAST, 40), [0, 5, 5, 7, 7]) == [
        (5, 5),
        (5, 5),
        (7, 2),
        (7, 2),
        (9, 2),
    ]


def test_the_batch_goes_to_the_middle_of_the_bounds_and_stays() -> None:
    # Dead band at A = 6: U = 9, L = 4, the middle is 6.
    sizes = [size for size, _ in limits_of(measured(RIGHT, 6), [0] * 6)]

    assert sizes == [5, 5, 6, 6, 6, 6]


def test_what_runs_is_never_too_many() -> None:
    # The middle of 3 and 60 is 31; 100 run, then 90: at most 2 less than the 100 before.
    policy = measured(SLOW, 60)

    first, _, second = limits_of(policy, [100, 0, 90])
    assert first == (100, 0)
    assert second == (98, 8)


def test_an_odd_step_freezes_prefills_where_decodes_are_too_slow() -> None:
    policy = measured(SLOW, 40)

    # U = 40, L = 3, the middle 21 is out of reach: 5, frozen at the 4 that run, then 4 + 2.
    assert limits_of(policy, [0, 4, 4, 5]) == [(5, 5), (4, 0), (6, 2), (5, 0)]


@pytest.mark.parametrize("latency_s", [RIGHT, FAST, 0.055])
def test_an_odd_step_does_nothing_else(latency_s: float) -> None:
    first, second = limits_of(measured(latency_s, 40), [0, 4])

    assert first == second == (5, 5)


def test_an_idle_engine_is_not_frozen() -> None:
    first, second = limits_of(measured(SLOW, 40), [0, 0])

    assert first == second == (5, 5)


def test_the_means_are_over_the_window() -> None:
    policy = measured(SLOW, 40, times=50)
    for _ in range(10):
        policy.observe_decode(FAST, 100)
    policy.limits(view(), schedule())

    # Nothing is left of the slow steps: L = min(100, 197).
    assert (policy._lower, policy._upper) == (100, 200)


def test_the_configured_prefill_batch_is_not_exceeded() -> None:
    settings = schedule(max_prefill_batch_size=2)

    assert limits_of(measured(FAST, 40), [0], settings) == [(5, 2)]


def test_a_max_batch_size_under_three_is_kept() -> None:
    settings = schedule(max_batch_size=2)

    assert limits_of(measured(FAST, 2), [0, 1, 1], settings) == [(2, 2), (2, 2), (2, 1)]


@given(
    st.lists(st.tuples(st.floats(1e-4, 1.0), st.integers(1, 300)), min_size=1, max_size=40),
    st.lists(st.integers(0, 300), min_size=1, max_size=40),
    st.integers(1, 250),
)
def test_bisection_stays_within_the_settings(
    samples: list[tuple[float, int]], running: list[int], most: int
) -> None:
    policy = BisectedBatchSize(window=10)
    settings = schedule(max_batch_size=most)
    present: int | None = None
    for number, count in enumerate(running):
        policy.observe_decode(*samples[number % len(samples)])
        count = min(count, most)  # noqa: PLW2901 - never more run than may
        size, prefills = policy.limits(view(count), settings)

        assert min(count, 3) <= size <= most
        assert 0 <= prefills <= settings.prefill_rows
        if number % 2 == 0:
            assert size >= max(count, min(3, most))
            assert prefills == min(size - count, settings.prefill_rows)
            assert present is None or abs(size - present) <= 2 or size in {count, 3, most}
        present = size


def test_bisection_finds_the_batch_that_meets_the_target() -> None:
    # A step takes 20 ms and 0.3 ms a row: 50 ms are 100 rows, the dead band 83 … 117.
    policy = BisectedBatchSize(window=100)
    running, sizes = 0, []
    for _ in range(2000):
        size, prefills = policy.limits(view(running, 50), schedule(max_batch_size=400))
        running = min(size, max(running - 1, 0) + prefills)
        if running:
            policy.observe_decode(0.020 + 0.0003 * running, running)
        sizes.append(running)

    assert all(80 <= size <= 120 for size in sizes[-200:])


# ── prediction ───────────────────────────────────────────────────────────────────────────────

PRICES = Coefficients(base=8e-3, token=1e-4, chunk_context=1e-12, decode_context=1e-6, row=2e-4)


def predicted(tpot_s: float = 0.05, prices: Coefficients = PRICES) -> PredictedBatchSize:
    return PredictedBatchSize(tpot_s, StepTimeModel(prices))


# 50 ms / 1.2 − 8 ms = 33.67 ms are left for the rows; one costs 0.3 ms and 1 µs a cached token.
@pytest.mark.parametrize(
    ("given", "limits"),
    [
        pytest.param({"mean_context": 1000.0}, (25, 25), id="1.3 ms a row: 25.9 rows"),
        pytest.param({"mean_context": 0.0}, (112, 50), id="0.3 ms a row: 112.2 rows"),
        pytest.param({"mean_context": 1000.0, "tokens_per_row": 5.0}, (19, 19), id="drafts"),
        pytest.param(
            {"mean_context": 1000.0, "blocks_per_row": 10.0, "num_blocks": 205},
            (20, 20),
            id="205 blocks hold 20 sequences of 10",
        ),
        pytest.param(
            {"mean_context": 1000.0, "blocks_per_row": 10.0, "num_blocks": 5},
            (1, 1),
            id="never under 1",
        ),
        pytest.param({"mean_context": 100_000.0}, (1, 1), id="one sequence runs, late or not"),
        pytest.param({"num_running": 30, "mean_context": 1000.0}, (30, 30), id="those that run"),
        pytest.param({"num_running": 300}, (200, 50), id="never above maxBatchSize"),
    ],
)
def test_the_predicted_size_by_hand(given: dict[str, Any], limits: tuple[int, int]) -> None:
    assert predicted().limits(view(**given), schedule()) == limits


# Up to a knee of 128 tokens a step costs 12.8 ms more whatever its rows: 20.87 ms are left.
@pytest.mark.parametrize(
    ("given", "limits"),
    [
        pytest.param({"mean_context": 1000.0}, (17, 17), id="1.2 ms a row: 17.4 rows"),
        pytest.param({"mean_context": 0.0}, (104, 50), id="0.2 ms a row: 104.3 rows, all free"),
        pytest.param({"mean_context": 0.0, "tokens_per_row": 5.0}, (48, 48), id="above: 48.1"),
    ],
)
def test_the_predicted_size_on_a_machine_with_a_knee(
    given: dict[str, Any], limits: tuple[int, int]
) -> None:
    model = StepTimeModel(PRICES)
    model.knee = 128

    assert PredictedBatchSize(0.05, model).limits(view(**given), schedule()) == limits


def test_a_target_below_the_cost_of_any_step_leaves_one_row() -> None:
    assert predicted(tpot_s=0.009).limits(view(), schedule()) == (1, 1)


def test_the_predicted_size_grows_only_while_requests_wait() -> None:
    policy, settings = predicted(), schedule()
    long: dict[str, Any] = {"mean_context": 1000.0}
    sizes = [
        policy.limits(view(**long), settings).max_batch_size,
        policy.limits(view(mean_context=0.0), settings).max_batch_size,
        policy.limits(view(mean_context=0.0, num_waiting=1), settings).max_batch_size,
        policy.limits(view(**long), settings).max_batch_size,
    ]

    assert sizes == [25, 25, 112, 25]


def test_a_lower_max_batch_size_holds_at_once() -> None:
    policy = predicted()
    policy.limits(view(), schedule())

    assert policy.limits(view(num_running=50), schedule(max_batch_size=10)) == (10, 10)


@given(
    st.floats(1e-3, 1.0),
    st.integers(0, 300),
    st.integers(0, 10),
    st.floats(0.0, 1e5),
    st.floats(0.0, 100.0),
    st.integers(0, 10_000),
)
def test_the_predicted_size_keeps_time_and_memory_or_what_runs(
    tpot_s: float,
    num_running: int,
    num_waiting: int,
    mean_context: float,
    blocks_per_row: float,
    num_blocks: int,
) -> None:
    seen = view(
        num_running,
        num_waiting,
        mean_context=mean_context,
        blocks_per_row=blocks_per_row,
        num_blocks=num_blocks,
    )
    size, prefills = predicted(tpot_s).limits(seen, schedule())
    row_s = PRICES.row + PRICES.token + PRICES.decode_context * mean_context

    assert 1 <= prefills <= size <= 200
    assert size >= min(num_running, 200)
    if size > max(num_running, 1):
        assert 1.2 * (PRICES.base + size * row_s) <= tpot_s * (1.0 + 1e-9)
        assert size * blocks_per_row <= num_blocks + 1e-6
