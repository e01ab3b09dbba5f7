"""Properties of every decision, over made-up services and their past."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import DecisionReason
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import (
    LatencySignal,
    Observation,
    ReplicaLoad,
    SignalProblem,
)
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.operator.scaling_law.measurements import PERIOD_S

NUMBERS: Final = st.one_of(
    st.floats(0, 1e6, allow_subnormal=False), st.sampled_from([float("nan"), float("inf"), -1.0])
)
GOOD: Final = st.floats(0, 100, allow_subnormal=False)


@st.composite
def policies(draw: st.DrawFn) -> ScalingPolicy:
    low = draw(st.integers(0, 4))
    return ScalingPolicy(
        min_replicas=low,
        max_replicas=draw(st.integers(max(low, 1), 12)),
        max_step_up=draw(st.integers(1, 6)),
        max_step_down=draw(st.integers(1, 3)),
        up_window_s=draw(st.sampled_from([0.0, 30.0, 60.0])),
        down_window_s=draw(st.sampled_from([60.0, 120.0, 300.0])),
        settle_s=draw(st.sampled_from([15.0, 60.0])),
    )


@st.composite
def signals(draw: st.DrawFn, numbers: st.SearchStrategy[float]) -> LatencySignal:
    num_samples = draw(st.sampled_from([0, 5, 100]))
    return LatencySignal(draw(numbers), draw(st.floats(0.05, 10)), num_samples, draw(GOOD) / 10)


@st.composite
def observations(
    draw: st.DrawFn, numbers: st.SearchStrategy[float] = NUMBERS, *, is_trusted: bool = False
) -> Observation:
    """Return measurements, possible and impossible ones."""
    maybe = numbers if is_trusted else st.none() | numbers
    problems = st.none() if is_trusted else st.none() | st.sampled_from(SignalProblem)
    return Observation(
        ready=draw(st.integers(0, 12)),
        starting=draw(st.integers(0, 6)),
        desired=draw(st.integers(0, 14)),
        overdue=draw(st.integers(0, 3)),
        stalled=draw(st.integers(0, 3)),
        unseen=draw(st.integers(0, 3)),
        busiest=ReplicaLoad(
            arrival_rate=draw(st.none() | GOOD), kv_usage=draw(st.none() | st.floats(0, 1))
        ),
        ttft=draw(signals(numbers)),
        tpot=draw(st.none() | signals(numbers)),
        queue_age_s=draw(maybe),
        arrival_rate=draw(maybe),
        refused_rate=draw(st.none() | numbers),
        capacity_per_replica=draw(st.none() | numbers),
        ongoing_requests=draw(st.none() | numbers),
        concurrency_per_replica=draw(st.none() | numbers),
        zero_load_ttft_s=draw(st.none() | numbers),
        zero_load_tpot_s=draw(st.none() | numbers),
        kv_usage=draw(st.none() | st.floats(0, 1)),
        room=draw(st.none() | st.integers(0, 12)),
        problem=draw(problems),
    )


@st.composite
def pasts(draw: st.DrawFn, policy: ScalingPolicy) -> tuple[History, float]:
    """Return a past made of decisions, and the moment after it."""
    history, now = History(), 0.0
    for observation in draw(st.lists(observations(), max_size=3)):
        for _ in range(draw(st.sampled_from([1, 3, 25]))):
            decision = decide(observation, policy, history, now)
            history = history.append(now, observation, decision)
            now += PERIOD_S
    return history, now


@st.composite
def cases(draw: st.DrawFn, /, **kinds: Any) -> tuple[Observation, ScalingPolicy, History, float]:
    policy = draw(policies())
    history, now = draw(pasts(policy))
    return draw(observations(**kinds)), policy, history, now


@given(cases())
def test_the_number_is_within_bounds(
    case: tuple[Observation, ScalingPolicy, History, float],
) -> None:
    observation, policy, history, now = case
    desired = decide(observation, policy, history, now).desired

    assert policy.min_replicas <= desired <= policy.max_replicas


@given(cases())
def test_only_a_reason_to_scale_changes_the_number(
    case: tuple[Observation, ScalingPolicy, History, float],
) -> None:
    observation, policy, history, now = case
    decision = decide(observation, policy, history, now)

    assert decision.reason.is_hold == (decision.desired == observation.desired)


@given(cases())
def test_bad_data_holds(case: tuple[Observation, ScalingPolicy, History, float]) -> None:
    observation, policy, history, now = case
    if observation.find_problem(policy.max_age_s) is None:
        return
    bounded = min(max(observation.desired, policy.min_replicas), policy.max_replicas)

    assert decide(observation, policy, history, now).desired == bounded


@given(cases())
def test_deciding_again_with_the_number_in_force_holds(
    case: tuple[Observation, ScalingPolicy, History, float],
) -> None:
    observation, policy, history, now = case
    decision = decide(observation, policy, history, now)
    taken = observation.room
    if taken is not None:
        taken = max(0, taken - max(0, decision.desired - observation.desired))
    again = replace(observation, desired=decision.desired, room=taken)
    history = history.append(now, observation, decision)

    assert decide(again, policy, history, now).desired == decision.desired


@given(cases(numbers=GOOD, is_trusted=True), GOOD)
def test_more_load_never_means_fewer_replicas(
    case: tuple[Observation, ScalingPolicy, History, float], more: float
) -> None:
    observation, policy, history, now = case
    lower = max(observation.arrival_rate or 0.0, 0.01)
    light = replace(observation, arrival_rate=lower)
    heavy = replace(observation, arrival_rate=lower + more)

    fewer = decide(light, policy, history, now).desired
    assert fewer <= decide(heavy, policy, history, now).desired


@given(cases(numbers=GOOD, is_trusted=True))
def test_a_longer_queue_or_a_higher_latency_never_means_fewer_replicas(
    case: tuple[Observation, ScalingPolicy, History, float],
) -> None:
    observation, policy, history, now = case
    busy = replace(observation, arrival_rate=max(observation.arrival_rate or 0.0, 0.01))
    ttft = busy.ttft
    assert ttft is not None
    slower = (
        replace(busy, queue_age_s=2 * (busy.queue_age_s or 0.0) + 1),
        replace(busy, ttft=replace(ttft, value_s=2 * ttft.value_s)),
    )

    desired = decide(busy, policy, history, now).desired
    assert all(desired <= decide(one, policy, history, now).desired for one in slower)


@given(cases(numbers=GOOD, is_trusted=True))
def test_nothing_is_removed_without_all_of_the_window(
    case: tuple[Observation, ScalingPolicy, History, float],
) -> None:
    observation, policy, history, now = case
    decision = decide(observation, policy, history, now)
    if decision.reason is not DecisionReason.UNDERUSED:
        return

    assert history.covers(now, policy.down_window_s)
    assert max(history.within(now, policy.down_window_s)) < observation.desired
    assert history.since_growth_s(now) >= policy.down_window_s
    step = max(policy.max_step_down, int(observation.desired * policy.max_shrink))
    assert observation.desired - decision.desired <= step


@given(st.data())
def test_no_replica_is_removed_within_the_window_after_one_was_added(data: st.DataObject) -> None:
    policy = data.draw(policies())
    desired, history, now = policy.min_replicas or 1, History(), 0.0
    changes = []
    for load in data.draw(st.lists(st.sampled_from([0.0, 5.0, 20.0, 60.0]), max_size=8)):
        for _ in range(data.draw(st.sampled_from([1, 4, 20]))):
            observation = steady(desired, load)
            decision = decide(observation, policy, history, now)
            history = history.append(now, observation, decision)
            if decision.desired != desired and decision.reason is not DecisionReason.BOUNDS_CHANGED:
                changes.append((now, decision.desired - desired))
            desired, now = decision.desired, now + PERIOD_S

    grown = [moment for moment, step in changes if step > 0]
    removed = [moment for moment, step in changes if step < 0]
    assert not [1 for up in grown for down in removed if 0 <= down - up < policy.down_window_s]


# An example is 200 decisions.
@settings(max_examples=settings().max_examples // 5)
@given(st.sampled_from([1.0, 5.0, 20.0, 60.0]), st.integers(1, 12))
def test_a_steady_load_settles_without_turning(load: float, replicas: int) -> None:
    policy, history, now = ScalingPolicy(max_replicas=12), History(), 0.0
    numbers = [replicas]
    for _ in range(200):
        observation = steady(numbers[-1], load)
        decision = decide(observation, policy, history, now)
        history = history.append(now, observation, decision)
        numbers.append(decision.desired)
        now += PERIOD_S

    # Until a rule is chosen, the number has the headroom of a load that is unknown.
    learnt = numbers[40:]
    steps = {after > before for before, after in pairwise(learnt) if after != before}
    assert len(steps) <= 1
    assert len(set(numbers[-40:])) == 1
    assert numbers[-1] * 10 >= min(load, 120)


def steady(replicas: int, load: float) -> Observation:
    """Return a service whose replicas carry 10 requests a second each, and answer at once."""
    share = min(load / (10.0 * replicas), 0.95) if replicas else 0.0
    num_samples = int(load * 60)
    ttft_s = 0.3 + 0.1 * share / (1 - share)
    return Observation(
        ready=replicas,
        desired=replicas,
        ttft=LatencySignal(ttft_s, 4.0, num_samples, 5.0),
        queue_age_s=0.0,
        arrival_rate=load,
        capacity_per_replica=10.0,
        zero_load_ttft_s=0.3,
        kv_usage=0.8 * share,
    )


@pytest.mark.parametrize("size", [1500])
def test_the_past_stays_small(size: int) -> None:
    history = History()
    for moment in range(size):
        observation = steady(1 + moment % 2, float(moment % 97))
        decision = decide(observation, ScalingPolicy(max_replicas=12), history, 15.0 * moment)
        history = history.append(15.0 * moment, observation, decision)

    assert len(history.decisions) <= 20
    assert len(history.recommendations) <= 512
    assert len(history.changes) <= 64
    assert len(history.samples) <= 64
    assert len(history.loads) <= 241
