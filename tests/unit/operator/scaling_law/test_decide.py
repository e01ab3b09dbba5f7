"""Decisions about the number of replicas: more, fewer, hold, each with its reason."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import DecisionReason as Reason
from tandem_operator.scaling_law.hindsight import FIRST, PastLoad, choose
from tandem_operator.scaling_law.history import Change, History
from tandem_operator.scaling_law.observation import Observation, SignalProblem
from tests.unit.operator.scaling_law.measurements import (
    POLICY,
    Loop,
    idle,
    observed,
    tpot,
    ttft,
)

NAN = float("nan")


def first(observation: Observation, **policy: Any) -> tuple[int, Reason]:
    """Return the decision with no past."""
    decision = decide(observation, replace(POLICY, **policy), History(), 0.0)
    return decision.desired, decision.reason


@pytest.mark.parametrize(
    ("observation", "result"),
    [
        pytest.param(observed(2), (2, Reason.WITHIN_TARGETS), id="targets are kept"),
        pytest.param(
            observed(2, arrival_rate=30.0), (4, Reason.PREDICTED_OVERLOAD), id="30·1.25/10 = 3.75"
        ),
        pytest.param(
            observed(2, arrival_rate=24.0), (3, Reason.PREDICTED_OVERLOAD), id="24·1.25/10 = 3"
        ),
        pytest.param(observed(2, arrival_rate=16.0), (2, Reason.WITHIN_TARGETS), id="exactly full"),
        pytest.param(observed(2, ttft=ttft(1.6)), (3, Reason.TTFT_ABOVE_TARGET), id="TTFT"),
        pytest.param(observed(2, tpot=tpot(0.09)), (3, Reason.TPOT_ABOVE_TARGET), id="TPOT"),
        pytest.param(
            observed(2, queue_age_s=1.6), (3, Reason.QUEUE_AGE_ABOVE_TARGET), id="queue age"
        ),
        pytest.param(
            observed(2, ttft=ttft(1.6), tpot=tpot(0.12)),
            (3, Reason.TPOT_ABOVE_TARGET),
            id="the largest ratio is the reason",
        ),
        pytest.param(
            observed(2, ttft=ttft(9.0, 5)), (2, Reason.TOO_FEW_SAMPLES), id="five requests"
        ),
        pytest.param(observed(8, arrival_rate=99.0), (8, Reason.AT_MAXIMUM), id="at the maximum"),
        pytest.param(
            observed(2, arrival_rate=30.0, room=0), (2, Reason.CAPACITY_UNAVAILABLE), id="no room"
        ),
        pytest.param(
            observed(2, arrival_rate=30.0, room=1),
            (3, Reason.PREDICTED_OVERLOAD),
            id="room for one",
        ),
        pytest.param(
            observed(1, arrival_rate=0.5, ttft=ttft(0.4), kv_usage=0.1),
            (1, Reason.WITHIN_TARGETS),
            id="one replica is the fewest",
        ),
        pytest.param(idle(1), (1, Reason.NO_TRAFFIC), id="idle at the minimum"),
        pytest.param(
            observed(2, ready=0, starting=2, ttft=ttft(NAN, 0)),
            (2, Reason.REPLICAS_STARTING),
            id="nothing answers yet",
        ),
        pytest.param(
            observed(2, ready=1, starting=1, ttft=ttft(1.6)),
            (2, Reason.REPLICAS_STARTING),
            id="one is on its way",
        ),
        pytest.param(
            observed(4, ready=3, starting=1, overdue=1, arrival_rate=30.0),
            (5, Reason.PREDICTED_OVERLOAD),
            id="one that never came is no capacity",
        ),
        pytest.param(
            observed(2, ready=2, starting=1, overdue=1),
            (2, Reason.WITHIN_TARGETS),
            id="one that is removed is missed by none",
        ),
        pytest.param(
            observed(3, ready=2, starting=1, overdue=1, ttft=ttft(1.6), arrival_rate=4.0),
            (4, Reason.TTFT_ABOVE_TARGET),
            id="a missed target does not wait for one that never came",
        ),
        pytest.param(
            observed(4, ready=2, starting=2, overdue=2, ttft=ttft(1.6), arrival_rate=4.0),
            (4, Reason.REPLICAS_LOST),
            id="nor is it met by more of them",
        ),
        pytest.param(
            observed(2, ready=0, starting=2, overdue=2, ttft=ttft(NAN, 0)),
            (2, Reason.REPLICAS_LOST),
            id="none comes",
        ),
        pytest.param(
            observed(3, ready=1, arrival_rate=30.0),
            (4, Reason.PREDICTED_OVERLOAD),
            id="those on their way are not enough",
        ),
    ],
)
def test_decisions(observation: Observation, result: tuple[int, Reason]) -> None:
    assert first(observation) == result


@pytest.mark.parametrize(
    ("ready", "value_s", "desired"), [(2, 1.8, 3), (4, 1.8, 5), (4, 2.4, 7), (4, 60.0, 8)]
)
def test_without_a_known_capacity_the_ratio_counts_up_to_twice(
    ready: int, value_s: float, desired: int
) -> None:
    observation = observed(ready, ttft=ttft(value_s), capacity_per_replica=None)

    assert first(observation, max_replicas=20) == (desired, Reason.TTFT_ABOVE_TARGET)


def test_a_step_is_bounded_within_its_window() -> None:
    loop = Loop(replace(POLICY, max_replicas=100))
    load = observed(2, arrival_rate=400.0)

    assert loop.step(load).desired == 6
    assert loop.step(replace(load, desired=6)).reason is Reason.STABILIZING
    assert loop.step(replace(load, desired=6)).reason is Reason.STABILIZING
    assert loop.step(replace(load, desired=6)).desired == 12


CONCURRENCY: Final = 20.0


def with_ongoing(replicas: int, ongoing: float, **values: Any) -> Observation:
    """Return a service with so many ongoing requests, whose arrivals alone ask for nothing."""
    concurrency = {"concurrency_per_replica": CONCURRENCY, "ongoing_requests": ongoing}
    return observed(replicas, **concurrency, **values)


def test_a_replica_that_its_ongoing_requests_need_stays() -> None:
    light = {"arrival_rate": 8.0, "ttft": ttft(0.35), "tpot": tpot(0.045), "kv_usage": 0.2}
    few, many = Loop(), Loop()

    assert few.steps(with_ongoing(3, 9.0, **light), seconds=900)[-1].desired == 1
    assert many.steps(with_ongoing(3, 45.0, **light), seconds=900)[-1].desired == 3


def test_of_many_replicas_a_tenth_is_removed_at_once() -> None:
    loop = Loop(replace(POLICY, max_replicas=100))
    numbers = [decision.desired for decision in loop.steps(idle(100), seconds=450)]

    assert sorted(set(numbers), reverse=True)[:3] == [100, 90, 81]


def test_load_and_latency_together_need_no_window() -> None:
    overload = {"arrival_rate": 30.0}
    missed = {"ttft": ttft(1.6)}
    decisions = []
    for values in (overload, missed, overload | missed):
        loop = Loop()
        loop.run(observed(2), seconds=60)
        decisions.append(loop.step(observed(2, **values)).desired)

    assert decisions == [2, 2, 4]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (SignalProblem.MISSING, Reason.METRICS_MISSING),
        (SignalProblem.STALE, Reason.METRICS_STALE),
        (SignalProblem.NOT_A_NUMBER, Reason.METRICS_INVALID),
        (SignalProblem.DISAGREEING, Reason.METRICS_DISAGREE),
        (SignalProblem.UNREACHABLE, Reason.METRICS_UNREACHABLE),
    ],
)
def test_each_problem_of_the_signals_holds(problem: SignalProblem, reason: Reason) -> None:
    assert first(observed(2, arrival_rate=99.0, problem=problem)) == (2, reason)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"arrival_rate": None}, Reason.METRICS_MISSING),
        ({"queue_age_s": None}, Reason.METRICS_MISSING),
        ({"ttft": None, "tpot": None}, Reason.METRICS_MISSING),
        ({"ttft": ttft(NAN)}, Reason.METRICS_INVALID),
        ({"tpot": tpot(float("inf"))}, Reason.METRICS_INVALID),
        ({"arrival_rate": -1.0}, Reason.METRICS_INVALID),
        ({"kv_usage": 1.2}, Reason.METRICS_INVALID),
        ({"capacity_per_replica": NAN}, Reason.METRICS_INVALID),
        ({"ttft": ttft(0.4, age_s=NAN)}, Reason.METRICS_INVALID),
        ({"ttft": ttft(0.4, age_s=300.0)}, Reason.METRICS_STALE),
        ({"tpot": tpot(0.05, age_s=-300.0)}, Reason.METRICS_STALE),
    ],
)
def test_bad_measurements_hold(values: dict[str, Any], reason: Reason) -> None:
    assert first(observed(2, **({"arrival_rate": 99.0} | values))) == (2, reason)


@pytest.mark.parametrize("age_s", [300.0, 5.0])
def test_a_load_is_remembered_only_while_it_can_be_trusted(age_s: float) -> None:
    observation = observed(2, arrival_rate=99.0, ttft=ttft(0.4, age_s=age_s))

    decision = decide(observation, POLICY, History(), 0.0)
    history = History().append(0.0, observation, decision)

    assert [load.replicas for load in history.loads] == ([9.9] if age_s == 5.0 else [])


def test_a_cold_start_that_was_not_measured_is_not_taken_for_none() -> None:
    loads = tuple(PastLoad(15.0 * i, 6.0 if i % 20 < 6 else 1.0, 20.0) for i in range(200))
    observation, now = observed(4, arrival_rate=20.0), 3000.0

    unknown, short = (
        decide(observation, POLICY, history, now).rule
        for history in (History(loads=loads), History(loads=loads, cold_starts_s=(60.0,)))
    )

    at_once = choose(loads, FIRST, cold_start_s=0.0, window_s=60.0, late_share=0.1)
    assert unknown == short != at_once


def test_no_samples_are_no_bad_measurement() -> None:
    assert first(observed(2, ttft=ttft(NAN, 0)))[1] is Reason.TOO_FEW_SAMPLES


@pytest.mark.parametrize(
    ("policy", "replicas", "result"),
    [
        ({"min_replicas": 3}, 2, (3, Reason.BOUNDS_CHANGED)),
        ({"max_replicas": 4}, 6, (4, Reason.BOUNDS_CHANGED)),
    ],
)
def test_bounds_are_followed_at_once_whatever_the_measurements(
    policy: dict[str, Any], replicas: int, result: tuple[int, Reason]
) -> None:
    assert first(observed(replicas), **policy) == result
    assert first(observed(replicas, problem=SignalProblem.UNREACHABLE), **policy) == result


def test_fewer_replicas_only_after_all_of_the_window() -> None:
    loop = Loop()
    light = observed(4, arrival_rate=8.0, ttft=ttft(0.35), tpot=tpot(0.045), kv_usage=0.2)

    assert loop.run(light, seconds=285).reason is Reason.STABILIZING
    decision = loop.step(light)
    assert (decision.desired, decision.reason) == (3, Reason.UNDERUSED)
    assert decision.recommended == 1


def test_replicas_are_removed_one_at_a_time_and_each_step_settles() -> None:
    loop = Loop()
    loop.run(idle(4), seconds=300)
    numbers = [decision.desired for decision in loop.steps(idle(3), seconds=150)]

    assert numbers[:6] == [3, 3, 3, 2, 2, 2]
    assert numbers[-1] == 1


@pytest.mark.parametrize(
    ("change", "arrival_rate", "name", "just_changed", "later"),
    [
        # The rule asks for 1.94, and for 2.05 replicas.
        (Change(0.0, 2, 3), 15.5, "fewest", 3, 2),
        (Change(0.0, 3, 2), 15.5, "fewest", 2, 2),
        (Change(0.0, 3, 2), 16.4, "needed", 2, 3),
        (Change(0.0, 2, 3), 16.4, "needed", 3, 3),
    ],
    ids=["fewer after more", "fewer after fewer", "more after fewer", "more after more"],
)
def test_a_number_that_has_changed_turns_beyond_chance_for_five_minutes(
    change: Change, arrival_rate: float, name: str, just_changed: int, later: int
) -> None:
    observation = observed(change.after, arrival_rate=arrival_rate, kv_usage=0.1)
    history = History(changes=(change,))

    numbers = [decide(observation, POLICY, history, now).inputs[name] for now in (299.0, 300.0)]

    assert numbers == [just_changed, later]


def test_one_busy_moment_keeps_the_replicas_for_another_window() -> None:
    loop = Loop()
    light = observed(4, arrival_rate=8.0, ttft=ttft(0.35), tpot=tpot(0.045), kv_usage=0.2)
    loop.run(light, seconds=240)
    loop.step(observed(4))

    assert loop.run(light, seconds=270).reason is Reason.STABILIZING
    assert loop.run(light, seconds=60).desired == 3


def test_the_window_is_no_shorter_than_a_measured_cold_start() -> None:
    history = History()
    for _ in range(5):
        history = history.with_cold_start(600.0)
    loop = Loop(history=history)

    assert loop.run(idle(2), seconds=570).reason is Reason.STABILIZING
    assert loop.run(idle(2), seconds=60).desired == 1


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"arrival_rate": 8.1}, id="8.1·1.25/10 > 1"),
        pytest.param({"kv_usage": 0.5}, id="the KV cache of one would be full"),
        pytest.param({"ttft": ttft(1.2)}, id="0.3 + 0.9·2 > 1.5/1.1"),
        pytest.param({"tpot": tpot(0.06)}, id="0.04 + 0.02·2 > 0.08/1.1"),
        pytest.param({"queue_age_s": 0.9}, id="0.9·2 > 1.5/1.1"),
        pytest.param({"capacity_per_replica": None}, id="no capacity is known"),
        pytest.param({"kv_usage": None}, id="no KV usage is known"),
    ],
)
def test_nothing_is_removed_that_the_others_could_not_carry(values: dict[str, Any]) -> None:
    light: dict[str, Any] = {
        "arrival_rate": 7.0,
        "ttft": ttft(0.5),
        "tpot": tpot(0.05),
        "kv_usage": 0.3,
    }

    assert Loop().run(observed(2, **light), seconds=330).desired == 1
    assert Loop().run(observed(2, **(light | values)), seconds=330).desired == 2


def test_a_service_without_a_minimum_goes_to_zero_and_stays_there() -> None:
    loop = Loop(replace(POLICY, min_replicas=0))

    assert loop.run(idle(1), seconds=300).desired == 0
    assert first(idle(0, refused=0), min_replicas=0) == (0, Reason.NO_TRAFFIC)


def test_an_infeasible_target_adds_nothing() -> None:
    slow = observed(2, ttft=ttft(2.0), zero_load_ttft_s=1.6, arrival_rate=99.0)

    assert first(slow) == (2, Reason.SLO_INFEASIBLE)
    assert slow.infeasible_targets == ("ttft",)
    assert first(observed(2, capacity_per_replica=0.0)) == (2, Reason.SLO_INFEASIBLE)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ({"queue_age_s": 20.0}, (4, Reason.QUEUE_AGE_ABOVE_TARGET)),
        ({"tpot": tpot(0.09)}, (3, Reason.TPOT_ABOVE_TARGET)),
        ({"refused_rate": 20.0}, (3, Reason.REQUESTS_REFUSED)),
        ({}, (2, Reason.SLO_INFEASIBLE)),
    ],
)
def test_an_infeasible_ttft_leaves_what_more_replicas_help_against(
    values: dict[str, Any], result: tuple[int, Reason]
) -> None:
    """One per cent above the target for an idle replica froze the fleet whatever its queue."""
    slow: dict[str, Any] = {"ttft": ttft(2.0), "zero_load_ttft_s": 1.515}
    unknown = observed(2, **slow, **{"arrival_rate": 40.0, "capacity_per_replica": 0.0, **values})

    assert first(unknown) == result


def test_without_any_capacity_a_queue_counts_and_no_latency() -> None:
    without = {"capacity_per_replica": 0.0, "ttft": ttft(3.0), "tpot": tpot(0.2)}

    assert first(observed(2, **without)) == (2, Reason.SLO_INFEASIBLE)
    assert first(observed(2, **without, queue_age_s=2.0))[1] is Reason.QUEUE_AGE_ABOVE_TARGET


def test_an_infeasible_target_removes_nothing_either() -> None:
    slow = observed(4, ttft=ttft(2.0), zero_load_ttft_s=1.6, arrival_rate=1.0, kv_usage=0.1)

    assert Loop().run(slow, seconds=900).reason is Reason.SLO_INFEASIBLE


def test_refused_requests_are_demand() -> None:
    """Slots keep the promises of those that are admitted; the others come to nothing for ever."""
    kept: dict[str, Any] = {"arrival_rate": 7.0, "ttft": ttft(0.5), "kv_usage": 0.2}

    assert first(observed(2, **kept)) == (2, Reason.STABILIZING)
    assert first(observed(2, **kept, refused_rate=7.0)) == (3, Reason.REQUESTS_REFUSED)
    assert first(observed(2, **kept, refused_rate=700.0)) == (3, Reason.REQUESTS_REFUSED)
    many = observed(2, arrival_rate=14.0, refused_rate=9.0)
    assert first(many) == (3, Reason.PREDICTED_OVERLOAD)
    assert decide(many, POLICY, History(), 0.0).inputs["needed"] == 3


@pytest.mark.parametrize("refused_rate", [0.0, 1 / 60, 0.13, None])
def test_a_request_that_is_refused_by_chance_adds_nothing(refused_rate: float | None) -> None:
    assert first(observed(2, refused_rate=refused_rate)) == (2, Reason.WITHIN_TARGETS)


def running(replicas: int, ongoing: float, **values: Any) -> Observation:
    """Return a service in which answers run and nothing arrives."""
    usual = {"ongoing_requests": ongoing, "concurrency_per_replica": CONCURRENCY, "kv_usage": 0.4}
    return idle(replicas, **{**usual, **values})


@pytest.mark.parametrize("replicas", range(1, 9))
@pytest.mark.parametrize("ongoing", [1.0, 12.0, 50.0, 140.0])
def test_running_answers_keep_their_replicas_and_a_constant_moment_never_turns(
    replicas: int, ongoing: float
) -> None:
    """Fifty answers of twenty minutes: 4 → 3 → 4 every six minutes, and without a minimum 0."""
    loop = Loop(replace(POLICY, min_replicas=0))
    numbers = [replicas, *(step.desired for step in loop.steps(running(replicas, ongoing), 7200))]
    steps = {after > before for before, after in pairwise(numbers) if after != before}

    assert len(steps) <= 1
    assert numbers[-1] >= 1
    is_held = numbers[-1] * CONCURRENCY >= ongoing - math.sqrt(ongoing)
    # A replica that is added takes over no answer that runs.
    assert is_held or numbers[-1] == replicas


def test_the_last_replica_stays_while_anything_runs() -> None:
    loop = Loop(replace(POLICY, min_replicas=0))

    assert loop.run(running(1, 1.0, kv_usage=0.01), seconds=1800).desired == 1
    assert loop.run(idle(1, ongoing_requests=0.0), seconds=600).desired == 0


def test_what_is_not_known_to_be_idle_stays() -> None:
    loop = Loop(replace(POLICY, min_replicas=0))

    assert loop.run(idle(2, kv_usage=None), seconds=1800).desired == 2


def test_answers_that_end_are_no_sign_of_requests_without_a_count() -> None:
    ending = running(2, 40.0, tpot=tpot(0.05, 30))

    assert first(ending)[1] is not Reason.METRICS_DISAGREE


def test_the_inputs_are_numbers_that_json_can_hold() -> None:
    decision = decide(observed(2, arrival_rate=NAN, kv_usage=NAN), POLICY, History(), 0.0)

    assert decision.inputs["arrival_rate"] is None
    assert decision.inputs["current"] == 2


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"max_replicas": 0}, "max_replicas"),
        ({"min_replicas": 9}, "min_replicas"),
        ({"max_kv_usage": 2.0}, "max_kv_usage"),
        ({"late_share": 0.0}, "late_share"),
        ({"down_window_s": NAN}, "down_window_s"),
        ({"max_step_up": 0}, "max_step_up"),
        ({"max_shrink": 1.0}, "max_shrink"),
    ],
)
def test_a_policy_that_could_not_work_is_an_error(values: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        replace(POLICY, **values)
