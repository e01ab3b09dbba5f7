"""Decisions that change the load they are made from: the loop is closed by a queue model.

The numbers that it settles at are compared with the arithmetic of capacity, since a number that
moves in the right direction may still be wrong.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest

from tandem_operator.scaling_law.decision import DecisionReason as Reason
from tandem_operator.scaling_law.hindsight import FIRST
from tandem_operator.scaling_law.observation import Observation, SignalProblem
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.operator.scaling_law.measurements import PERIOD_S
from tests.unit.operator.scaling_law.queue_model import CAPACITY, Run

POLICY: Final = ScalingPolicy(min_replicas=1, max_replicas=16)
STEP_S: Final = 600.0
SEEDS: Final = (1, pytest.param(2, marks=pytest.mark.slow))


def step(before: float, after: float) -> Callable[[float], float]:
    """Return a load that changes once."""
    return lambda moment: before if moment < STEP_S else after


def capacity_for(rate: float) -> int:
    """Return the replicas that a known load is left with, by arithmetic."""
    return math.ceil(rate * POLICY.hysteresis / CAPACITY)


def turns(run: Run) -> list[float]:
    """Return the moments at which replicas were removed within a window of being added."""
    changes = run.changes()
    return [
        later[0]
        for i, first in enumerate(changes)
        for later in changes[i + 1 :]
        if first[1] > 0 > later[1] and later[0] - first[0] < POLICY.down_window_s
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cold_start_s", [30.0, 90.0, 300.0])
def test_a_step_settles_within_two_periods_of_the_cold_start(
    cold_start_s: float, seed: int
) -> None:
    """The load is known a minute after the step, the length of the windows it is measured in."""
    run = Run(step(12.0, 30.0), POLICY, 2, cold_start_s=cold_start_s, seed=seed).until(5400)
    known_s = STEP_S + 60.0 + POLICY.up_window_s
    settled_s = known_s + cold_start_s + 2 * PERIOD_S

    assert run.numbers(STEP_S - PERIOD_S)[0] == capacity_for(12.0)
    assert not [at_s for at_s, change in run.changes(settled_s) if change > 0]
    assert run.numbers()[-1] == capacity_for(30.0)
    # A queue from a long cold start counts as up to the load once more, until it is drained.
    assert max(run.numbers()) <= (math.ceil(2 * 30.0 / CAPACITY) if cold_start_s > 90 else 5)
    assert not turns(run)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fall_settles_at_the_arithmetic_and_misses_nothing(seed: int) -> None:
    run = Run(step(30.0, 12.0), POLICY, capacity_for(30.0), seed=seed).until(5400)
    steps = run.changes(STEP_S)

    assert run.numbers()[-1] == capacity_for(12.0)
    assert all(change < 0 for _, change in steps)
    assert steps[0][0] > STEP_S
    assert all(later[0] - first[0] >= POLICY.settle_s for first, later in pairwise(steps))
    assert run.attainment > 0.99


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda moment: 20 + 10 * math.sin(2 * math.pi * moment / 3600), id="sine"),
        pytest.param(lambda moment: min(40.0, 5 + moment / 90), id="ramp"),
        pytest.param(lambda moment: 60.0 if 1800 <= moment < 1830 else 12.0, id="burst"),
        pytest.param(lambda moment: 14.4 if moment % 240 < 120 else 12.0, id="at a boundary"),
    ],
)
def test_no_load_makes_it_flap(load: Callable[[float], float], seed: int) -> None:
    run = Run(load, POLICY, 2, seed=seed).until(2 * 3600)

    assert not turns(run)
    assert run.attainment > 0.93


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_removed_that_one_fewer_could_not_carry(seed: int) -> None:
    """Each removal is followed by targets that are kept, for as long as the load is the same."""
    run = Run(lambda moment: 36.0 - 8 * (moment // 1800), POLICY, 5, seed=seed).until(4 * 1800)
    removals = [one for one in run.moments if one.decision.reason is Reason.UNDERUSED]

    assert removals
    for removal in removals:
        fewest = removal.decision.inputs["fewest"]
        assert fewest is not None
        assert fewest <= removal.decision.desired
    assert run.attainment > 0.99


@pytest.mark.parametrize("cold_start_s", [300.0, 900.0])
def test_replicas_that_start_are_not_asked_for_again(cold_start_s: float) -> None:
    run = Run(step(12.0, 30.0), POLICY, 2, cold_start_s=cold_start_s).until(STEP_S + cold_start_s)
    twice = math.ceil(2 * 32.0 / CAPACITY)

    assert capacity_for(30.0) <= max(run.numbers()) <= twice


@pytest.mark.parametrize("num_never", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_replicas_that_never_answer_are_replaced_as_far_as_one_is_lost(num_never: int) -> None:
    """They took the credit of the load's own replicas for ever, and a missed target waited."""
    run = Run(step(12.0, 30.0), POLICY, 2, num_never=num_never).until(3 * 3600)
    working = run.moments[-1].observation.ready

    assert max(run.numbers()) <= capacity_for(30.0 * FIRST.factor) + num_never
    assert working >= capacity_for(30.0) - (num_never - 1)
    assert not turns(run)


def test_where_no_replica_answers_any_more_the_number_ends() -> None:
    run = Run(step(12.0, 60.0), replace(POLICY, max_replicas=64), 2, num_never=64).until(3 * 3600)

    assert max(run.numbers()) <= 2 * math.ceil(2 * 60.0 / CAPACITY)
    assert len(set(run.numbers(1800.0))) == 1
    assert run.moments[-1].decision.reason in {Reason.REPLICAS_LOST, Reason.STABILIZING}


def test_without_a_known_capacity_it_still_does_not_cascade() -> None:
    def hide(_: float, observation: Observation) -> Observation:
        return replace(observation, capacity_per_replica=None)

    run = Run(step(12.0, 30.0), POLICY, 2, cold_start_s=600.0, disturb=hide).until(1260)

    assert max(run.numbers()) == 4


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"problem": SignalProblem.UNREACHABLE}, Reason.METRICS_UNREACHABLE),
        ({"problem": SignalProblem.DISAGREEING}, Reason.METRICS_DISAGREE),
        ({"arrival_rate": None}, Reason.METRICS_MISSING),
        ({"arrival_rate": float("nan")}, Reason.METRICS_INVALID),
        ({"arrival_rate": 0.0}, Reason.METRICS_DISAGREE),
    ],
)
@pytest.mark.parametrize("outage_s", [pytest.param(60.0, marks=pytest.mark.slow), 900.0])
def test_bad_data_holds_and_afterwards_it_goes_on(
    values: dict[str, object], reason: Reason, outage_s: float
) -> None:
    """The load doubles while the data are bad."""

    def disturb(moment: float, observation: Observation) -> Observation:
        is_bad = STEP_S <= moment < STEP_S + outage_s
        return replace(observation, **values) if is_bad else observation  # type: ignore[arg-type]

    run = Run(step(12.0, 30.0), POLICY, 2, disturb=disturb).until(3600)
    during = [one for one in run.moments if STEP_S <= one.at_s < STEP_S + outage_s]

    assert {(one.decision.desired, one.decision.reason) for one in during} == {(2, reason)}
    assert run.numbers()[-1] == capacity_for(30.0)
    assert not turns(run)


def test_an_idle_service_ends_at_its_minimum_and_stays_there() -> None:
    run = Run(lambda moment: 30.0 if moment < STEP_S else 0.0, POLICY, 5).until(3600)

    assert run.numbers()[-1] == 1
    assert run.moments[-1].decision.reason is Reason.NO_TRAFFIC
    assert not [change for _, change in run.changes(STEP_S) if change > 0]
