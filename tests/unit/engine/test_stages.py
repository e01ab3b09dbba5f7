"""Prefill or decode next: MindIE's three policies, with figures worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import Coefficients, StepTimeModel
from tandem_engine.scheduler.policies.stages import (
    Stage,
    StagePolicy,
    StageView,
    stage_policy_for,
)
from tandem_engine.scheduler.policies.stages.stage_policies import (
    LeastLaxity,
    PrefillFirst,
    ThroughputFirst,
    laxity,
)


def view(**given: Any) -> StageView:
    """A request waits long enough, another runs, there are blocks."""
    usual: dict[str, Any] = {
        "num_waiting": 1,
        "num_running": 1,
        "num_swapped": 0,
        "head_wait_s": 1.0,
        "waiting_load": lambda: load(num_tokens=100),
        "decode_load": lambda: load(num_rows=1),
        "free_share": 0.5,
        "last_step_empty": False,
    }
    return StageView(**usual | given)


def load(num_tokens: int = 1, num_rows: int = 1) -> StepLoad:
    return StepLoad(num_tokens=num_tokens, num_rows=num_rows, chunk_context=0.0, decode_context=0)


def stage_policy(number: int) -> StagePolicy:
    return stage_policy_for(number, StepTimeModel())


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
    policy = stage_policy(number)
    late = view(head_wait_s=1000.0, last_step_empty=True)

    assert policy.choose(late, schedule()) == "decode"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_after_an_empty_step_with_nothing_running_a_prefill_is_tried(number: int) -> None:
    policy = stage_policy(number)

    assert policy.choose(view(num_running=0, last_step_empty=True), schedule()) == "prefill"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_prefill_while_the_batch_size_policy_holds_them_back(number: int) -> None:
    policy = stage_policy(number)
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


# 30 ms for any step, 0.1 ms for each token and each row; attention costs next to nothing.
PRICES = Coefficients(base=0.03, token=1e-4, chunk_context=1e-12, decode_context=1e-12, row=1e-4)


def prompt(num_tokens: int) -> Callable[[], StepLoad]:
    return lambda: load(num_tokens=num_tokens)


def decodes(num_rows: int) -> Callable[[], StepLoad]:
    return lambda: load(num_tokens=num_rows, num_rows=num_rows)


def least_laxity() -> LeastLaxity:
    return LeastLaxity(StepTimeModel(PRICES))


@pytest.mark.parametrize(
    ("given_view", "stage"),
    [
        # 50 rows take 40 ms: (50 − 40) / 50 = 0.2. A prompt of 1000: (1500 − w − 130.1) / 1500.
        pytest.param(
            {"decode_load": decodes(50), "waiting_load": prompt(1000), "head_wait_s": 1.0698},
            "decode",
            id="0.20007 is not less than 0.2",
        ),
        pytest.param(
            {"decode_load": decodes(50), "waiting_load": prompt(1000), "head_wait_s": 1.0700},
            "prefill",
            id="0.19993 is less than 0.2",
        ),
        pytest.param(
            {"decode_load": decodes(40), "waiting_load": prompt(1000), "head_wait_s": 1.02},
            "prefill",
            id="0.2333 is less than the 0.24 of 40 rows",
        ),
        pytest.param(
            {"decode_load": decodes(40), "waiting_load": prompt(1000), "head_wait_s": 1.0},
            "decode",
            id="40 rows have 0.24, the prompt 0.2466",
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
def test_least_laxity(given_view: dict[str, Any], stage: Stage) -> None:
    assert least_laxity().choose(view(**given_view), schedule()) == stage


def test_least_laxity_goes_by_what_steps_have_taken() -> None:
    model = StepTimeModel(PRICES)
    policy = LeastLaxity(model)
    # A row takes 30 ms of its 50, a fresh prompt of 1000 tokens 130 of its 1500.
    busy = view(waiting_load=prompt(1000), decode_load=decodes(1), head_wait_s=0.0)

    assert policy.choose(busy, schedule()) == "decode"
    for number in range(100):
        for num_tokens in (1 + number % 3, 500 + number):
            model.observe(load(num_tokens=num_tokens), 0.001 + 1.2e-3 * num_tokens)
    # A row takes 2 ms, the prompt 1.2 s.
    assert policy.choose(busy, schedule()) == "prefill"


def test_loads_are_not_added_up_where_no_policy_asks() -> None:
    def refuse() -> StepLoad:
        raise AssertionError("must not be added up")

    unread = view(waiting_load=refuse, decode_load=refuse)
    for number in (0, 1):
        stage_policy(number).choose(unread, schedule())
    least_laxity().choose(view(num_waiting=0, decode_load=refuse), schedule())

    with pytest.raises(AssertionError, match="must not be added up"):
        least_laxity().choose(unread, schedule())
