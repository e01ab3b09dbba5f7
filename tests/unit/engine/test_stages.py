"""Prefill or decode next: MindIE's three policies, with figures worked out by hand."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.stage_models import DecodeModel, PrefillModel
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.policies.stages import STAGE_POLICIES, Stage, StageView
from tandem_engine.scheduler.policies.stages.least_laxity import LeastLaxity, laxity
from tandem_engine.scheduler.policies.stages.prefill_first import PrefillFirst
from tandem_engine.scheduler.policies.stages.throughput_first import ThroughputFirst


def counts(value: int) -> Callable[[], int]:
    return lambda: value


def view(**given: Any) -> StageView:
    """A request waits long enough, another runs, there are blocks."""
    usual: dict[str, Any] = {
        "num_waiting": 1,
        "num_running": 1,
        "num_swapped": 0,
        "head_wait_s": 1.0,
        "waiting_tokens": counts(100),
        "running_blocks": counts(10),
        "free_share": 0.5,
        "last_step_empty": False,
    }
    return StageView(**usual | given)


def load(num_tokens: int = 1, num_rows: int = 1, num_blocks: int = 0) -> StepLoad:
    return StepLoad(
        num_tokens=num_tokens,
        num_rows=num_rows,
        chunk_context=0.0,
        decode_context=0,
        num_blocks=num_blocks,
    )


def schedule(**given: Any) -> ScheduleConfig:
    return ScheduleConfig(**given)


# ── prefill first ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given_view", "given_schedule", "stage"),
    [
        pytest.param({}, {}, "prefill", id="one waits and all is well"),
        pytest.param({"num_waiting": 0, "head_wait_s": 0.0}, {}, "decode", id="none waits"),
        pytest.param({"num_swapped": 1}, {}, "decode", id="swapped sequences come back first"),
        pytest.param(
            {"num_swapped": 1, "num_running": 0}, {}, "decode", id="also when nothing runs"
        ),
        pytest.param({"head_wait_s": 0.0049}, {}, "decode", id="younger than the 5000 µs"),
        pytest.param({"head_wait_s": 0.005}, {}, "prefill", id="exactly 5000 µs old"),
        pytest.param(
            {"head_wait_s": 0.0005},
            {"max_queue_delay_microseconds": 500},
            "prefill",
            id="a shorter delay is over sooner",
        ),
        pytest.param(
            {"head_wait_s": 0.0, "num_waiting": 50}, {}, "decode", id="at 5000 µs only age counts"
        ),
        pytest.param(
            {"head_wait_s": 0.0, "num_waiting": 50},
            {"max_queue_delay_microseconds": 5001},
            "prefill",
            id="above 5000 µs a full prefill batch is ripe",
        ),
        pytest.param(
            {"head_wait_s": 0.0, "num_waiting": 49},
            {"max_queue_delay_microseconds": 5001},
            "decode",
            id="one less is not full",
        ),
        pytest.param(
            {"head_wait_s": 0.0, "num_waiting": 199},
            {"max_queue_delay_microseconds": 5001, "max_prefill_batch_size": 0},
            "decode",
            id="maxPrefillBatchSize 0 means maxBatchSize",
        ),
        pytest.param(
            {"head_wait_s": 0.0, "num_waiting": 8, "max_prefill_batch_size": 8},
            {"max_queue_delay_microseconds": 5001},
            "prefill",
            id="full is what the batch size policy says",
        ),
        pytest.param({"free_share": 0.049}, {}, "decode", id="under 5 % of the blocks are free"),
        pytest.param({"free_share": 0.05}, {}, "prefill", id="exactly 5 % are enough"),
        pytest.param(
            {"free_share": 0.0, "num_running": 0}, {}, "prefill", id="none needs the reserve"
        ),
    ],
)
def test_prefill_first(
    given_view: dict[str, Any], given_schedule: dict[str, Any], stage: Stage
) -> None:
    assert PrefillFirst().choose(view(**given_view), schedule(**given_schedule)) == stage


@pytest.mark.parametrize("number", [0, 1, 2])
def test_after_an_empty_step_running_sequences_go_on(number: int) -> None:
    policy = STAGE_POLICIES[number]()
    late = view(head_wait_s=1000.0, last_step_empty=True)

    assert policy.choose(late, schedule()) == "decode"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_after_an_empty_step_with_nothing_running_a_prefill_is_tried(number: int) -> None:
    policy = STAGE_POLICIES[number]()

    assert policy.choose(view(num_running=0, last_step_empty=True), schedule()) == "prefill"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_prefill_while_the_batch_size_policy_holds_them_back(number: int) -> None:
    policy = STAGE_POLICIES[number]()
    late = view(head_wait_s=1000.0, max_prefill_batch_size=0)

    assert policy.choose(late, schedule(decode_time_ms_per_req=1000)) == "decode"


# ── throughput first ─────────────────────────────────────────────────────────────────────────


def steps_until_prefill(
    policy: ThroughputFirst, running: int, settings: ScheduleConfig, limit: int = 100
) -> int:
    for number in range(1, limit):
        if policy.choose(view(num_running=running), settings) == "prefill":
            return number
    return limit


@pytest.mark.parametrize(
    ("running", "steps"),
    [
        pytest.param(0, 1, id="nothing to stop: 0 ms against 10000 ms of waste"),
        pytest.param(50, 1, id="7500 ms against 7500 ms a step"),
        pytest.param(51, 2, id="7650 ms against 7450 ms a step"),
        pytest.param(100, 3, id="15000 ms against 5000 ms a step"),
        pytest.param(180, 27, id="27000 ms against 1000 ms a step"),
        pytest.param(199, 597, id="29850 ms against 50 ms a step"),
        pytest.param(200, 700, id="a full batch wastes nothing: never"),
    ],
)
def test_prefills_come_the_rarer_the_fuller_the_batch(running: int, steps: int) -> None:
    settings = schedule(max_batch_size=200)
    policy = ThroughputFirst()

    # Twice: the waste starts from 0 again after each prefill.
    assert steps_until_prefill(policy, running, settings, 700) == steps
    assert steps_until_prefill(policy, running, settings, 700) == steps


def test_only_the_ratio_of_the_two_times_counts() -> None:
    settings = schedule(prefill_time_ms_per_req=600, decode_time_ms_per_req=200)

    assert steps_until_prefill(ThroughputFirst(), 100, settings) == 3


def test_a_larger_ratio_prefers_decodes_for_longer() -> None:
    # 600 · 100 = 60000 ms against 5000 ms a step.
    settings = schedule(prefill_time_ms_per_req=600)

    assert steps_until_prefill(ThroughputFirst(), 100, settings) == 12


def test_with_none_waiting_the_waste_is_forgotten() -> None:
    settings = schedule()
    policy = ThroughputFirst()
    decisions = [policy.choose(view(num_running=100), settings) for _ in range(2)]

    assert policy.choose(view(num_running=100, num_waiting=0), settings) == "decode"
    assert decisions == ["decode", "decode"]
    assert steps_until_prefill(policy, 100, settings) == 3


def test_more_running_than_max_batch_size_waste_nothing() -> None:
    settings = schedule(max_batch_size=60)
    policy = ThroughputFirst()

    # 150 · 100 = 15000 ms is never reached while 100 run under a limit of 60.
    assert steps_until_prefill(policy, 100, settings) == 100
    # At 50 running, 7500 ms against 500 ms a step: what stood above the limit added nothing.
    assert steps_until_prefill(policy, 50, settings) == 15


@given(st.integers(0, 199), st.integers(0, 1000), st.integers(1, 1000))
def test_the_waste_reaches_every_cost(running: int, prefill_ms: int, decode_ms: int) -> None:
    settings = schedule(prefill_time_ms_per_req=prefill_ms, decode_time_ms_per_req=decode_ms)
    cost, waste = prefill_ms * running, decode_ms * (200 - running)
    expected = max(1, -(-cost // waste))
    policy = ThroughputFirst()
    settled = view(num_running=running)

    for _ in range(min(expected, 50) - 1):
        assert policy.choose(settled, settings) == "decode"
    if expected <= 50:
        assert policy.choose(settled, settings) == "prefill"


# ── least laxity ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("deadline_ms", "waited_s", "predicted_s", "expected"),
    [(1500, 0.3, 0.3, 0.6), (50, 0.0, 0.05, 0.0), (50, 0.0, 0.1, -1.0), (0, 5.0, 5.0, 0.0)],
)
def test_laxity_is_the_share_of_the_deadline_that_is_left(
    deadline_ms: int, waited_s: float, predicted_s: float, expected: float
) -> None:
    assert laxity(deadline_ms, waited_s, predicted_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_tokens", "seconds"), [(0, 0.025797), (1000, 0.157497), (8192, 1.1046834)]
)
def test_mindies_start_values_of_a_prefill(num_tokens: int, seconds: float) -> None:
    assert PrefillModel().predict(num_tokens) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rows", "blocks", "seconds"),
    [(0, 0, 0.029961), (50, 0, 0.040866), (100, 5000, 0.051771), (92, 1, 0.0500262)],
)
def test_mindies_start_values_of_a_decode(rows: int, blocks: int, seconds: float) -> None:
    assert DecodeModel().predict(rows, blocks) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("given_view", "stage"),
    [
        # 50 rows: (50 − 40.866) / 50 = 0.1827. A prompt of 1000: (1500 − w − 157.497) / 1500.
        pytest.param(
            {"num_running": 50, "waiting_tokens": counts(1000), "head_wait_s": 1.068},
            "decode",
            id="0.183003 is not less than 0.18268",
        ),
        pytest.param(
            {"num_running": 50, "waiting_tokens": counts(1000), "head_wait_s": 1.069},
            "prefill",
            id="0.182335 is less than 0.18268",
        ),
        pytest.param(
            {"num_running": 40, "waiting_tokens": counts(1000), "head_wait_s": 1.02},
            "prefill",
            id="0.2150 is less than the 0.2263 of 40 rows",
        ),
        pytest.param(
            {"num_running": 40, "num_swapped": 10, "waiting_tokens": counts(1000)}
            | {"head_wait_s": 1.02},
            "decode",
            id="but not than that of 50: swapped sequences count as running ones",
        ),
        pytest.param(
            {"num_running": 40, "waiting_tokens": counts(1000), "head_wait_s": 1.0},
            "decode",
            id="40 rows have 0.2263, the prompt 0.2283",
        ),
        pytest.param({"num_running": 0, "head_wait_s": 0.0}, "prefill", id="nothing runs"),
        pytest.param({"num_waiting": 0, "head_wait_s": 99.0}, "decode", id="nothing waits"),
        pytest.param(
            {"num_running": 0, "num_waiting": 0, "num_swapped": 2},
            "decode",
            id="only swapped ones are there",
        ),
        pytest.param(
            {"max_prefill_batch_size": 0, "head_wait_s": 99.0}, "decode", id="prefills held back"
        ),
    ],
)
def test_least_laxity_at_the_start_values(given_view: dict[str, Any], stage: Stage) -> None:
    assert LeastLaxity().choose(view(**given_view), schedule()) == stage


def test_least_laxity_learns_from_the_stage_that_ran() -> None:
    policy = LeastLaxity()
    # 92 rows: (50 − 50.026) / 50 < 0; a fresh prompt of 100 tokens has 0.974.
    busy = view(num_running=92, head_wait_s=0.0)

    assert policy.choose(busy, schedule()) == "decode"
    for num_tokens in (100, 200):
        policy.observe("prefill", load(num_tokens=num_tokens), 0.02 * num_tokens + 0.001)
    # The prompt takes 2.001 s: (1500 − 2001) / 1500 = −0.334.
    assert policy.choose(busy, schedule()) == "prefill"
    for number in range(400):
        rows, blocks = 1 + number % 20, 5 + number % 7
        policy.observe(
            "decode",
            load(num_rows=rows, num_blocks=blocks),
            0.001 * rows + 0.0001 * blocks + 0.01,
        )
    # The 92 rows take 103 ms: (50 − 103) / 50 = −1.06.
    assert policy.choose(busy, schedule()) == "decode"


def test_counts_are_not_taken_where_no_policy_asks() -> None:
    def refuse() -> int:
        raise AssertionError("must not be counted")

    uncounted = view(waiting_tokens=refuse, running_blocks=refuse)
    for number in (0, 1):
        STAGE_POLICIES[number]().choose(uncounted, schedule())
    LeastLaxity().choose(view(num_waiting=0, running_blocks=refuse), schedule())

    with pytest.raises(AssertionError, match="must not be counted"):
        LeastLaxity().choose(uncounted, schedule())


# ── the two models of least laxity ───────────────────────────────────────────────────────────


def test_a_prefill_fit_is_the_line_through_two_samples() -> None:
    model = PrefillModel()
    model.observe(100, 0.030)
    assert model.coefficients == (0.1317e-3, 25.797e-3)  # one sample makes no line
    model.observe(300, 0.050)

    assert model.coefficients == pytest.approx((0.0001, 0.020))


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([(100, 0.05), (300, 0.03)], id="more tokens took less time: s < 0"),
        pytest.param([(100, 0.03), (300, 0.03)], id="tokens made no difference: s = 0"),
        pytest.param([(100, 0.01), (300, 0.05)], id="a line below 0 at no tokens: c < 0"),
    ],
)
def test_a_prefill_fit_that_cannot_be_is_not_taken(samples: list[tuple[int, float]]) -> None:
    model = PrefillModel()
    for num_tokens, seconds in samples:
        model.observe(num_tokens, seconds)

    assert model.coefficients == (0.1317e-3, 25.797e-3)


def test_a_prefill_fit_finds_the_line_under_noise() -> None:
    model, chance = PrefillModel(), random.Random(5)
    for _ in range(500):
        num_tokens = chance.randint(10, 8000)
        model.observe(num_tokens, (2e-4 * num_tokens + 0.05) * chance.uniform(0.9, 1.1))

    assert model.predict(4000) == pytest.approx(0.85, rel=0.02)
    assert model.coefficients[0] == pytest.approx(2e-4, rel=0.03)


def decode_samples(count: int, row_s: float, block_s: float, base_s: float) -> DecodeModel:
    model, chance = DecodeModel(), random.Random(7)
    for _ in range(count):
        rows, blocks = chance.randint(1, 200), chance.randint(1, 4000)
        model.observe(rows, blocks, row_s * rows + block_s * blocks + base_s)
    return model


def test_a_decode_fit_comes_with_the_400th_sample() -> None:
    before = decode_samples(399, 1e-4, 1e-6, 0.02)
    after = decode_samples(400, 1e-4, 1e-6, 0.02)

    assert before.coefficients == (0.2181e-3, 0.0, 29.961e-3)
    assert after.coefficients == pytest.approx((1e-4, 1e-6, 0.02), rel=1e-6)


@pytest.mark.parametrize(
    ("row_s", "block_s", "base_s"),
    [
        pytest.param(1e-4, -1e-6, 0.05, id="blocks that save time"),
        pytest.param(-1e-5, 1e-6, 0.05, id="rows that save time"),
        pytest.param(1e-3, 1e-5, -0.005, id="a step that takes less than nothing"),
    ],
)
def test_a_decode_fit_needs_three_positive_coefficients(
    row_s: float, block_s: float, base_s: float
) -> None:
    model = decode_samples(400, row_s, block_s, base_s)

    assert model.coefficients == (0.2181e-3, 0.0, 29.961e-3)


def test_decode_samples_on_a_line_make_no_fit() -> None:
    model = DecodeModel()
    for number in range(400):
        model.observe(number, 2 * number, 1e-4 * number + 0.02)

    assert model.coefficients == (0.2181e-3, 0.0, 29.961e-3)


def test_a_decode_fit_forgets_what_left_the_ring_of_1000() -> None:
    model, chance = DecodeModel(), random.Random(9)
    for number in range(2400):
        rows, blocks = chance.randint(1, 200), chance.randint(1, 4000)
        pace = 5.0 if number < 1400 else 1.0
        model.observe(rows, blocks, pace * (1e-4 * rows + 1e-6 * blocks + 0.02))

    assert model.coefficients == pytest.approx((1e-4, 1e-6, 0.02), rel=1e-6)
