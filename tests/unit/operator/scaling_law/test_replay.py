"""Decisions over a recorded past: the same policy gives what ran, another one another number."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import Observation
from tandem_operator.scaling_law.policy import ScalingPolicy
from tandem_operator.scaling_law.replay import Recorded, Replayed, replay
from tests.unit.operator.scaling_law.measurements import PERIOD_S, POLICY, observed, ttft

BEGIN = 1_000_000.0
COLD_START_S = 60.0


def run(rates: Sequence[float], policy: ScalingPolicy = POLICY) -> list[Recorded]:
    """Return the record of a service that follows `policy` at once."""
    history, desired, ready = History().with_cold_start(COLD_START_S), 1, 1
    starts: list[float] = []
    past = []
    for number, rate in enumerate(rates):
        now = BEGIN + number * PERIOD_S
        ready += sum(at <= now for at in starts)
        starts = [at for at in starts if at > now]
        seen = observed(
            desired=desired, ready=ready, starting=desired - ready, arrival_rate=rate, kv_usage=0.2
        )
        past.append(Recorded(now, seen))
        decision = decide(seen, policy, history, now)
        history = history.append(now, seen, decision)
        starts += [now + COLD_START_S] * max(decision.desired - desired, 0)
        ready = min(ready, decision.desired)
        desired = decision.desired
    return past


def replayed(
    past: Sequence[Recorded], policy: ScalingPolicy = POLICY, cold_start_s: float = COLD_START_S
) -> list[Replayed]:
    return list(replay(past, lambda _: policy, cold_start_s=cold_start_s))


STEP = [7.0] * 8 + [21.0, 28.0, 35.0] + [45.0] * 37 + [7.0] * 60


def test_the_policy_that_ran_decides_as_it_did() -> None:
    past = run(STEP)
    after = [one.observation.desired for one in past[1:]]

    assert max(after) > 4
    assert after[-1] < max(after)
    assert [one.decision.desired for one in replayed(past)][:-1] == after


@given(st.lists(st.floats(0.1, 70.0), min_size=1, max_size=60))
def test_it_does_so_for_every_load(rates: list[float]) -> None:
    past = run(rates)

    found = [one.decision.desired for one in replayed(past)]

    assert found[:-1] == [one.observation.desired for one in past[1:]]


def test_a_service_with_a_fixed_number_shows_what_would_have_been() -> None:
    past = [
        Recorded(BEGIN + number * PERIOD_S, observed(2, arrival_rate=rate, kv_usage=0.2))
        for number, rate in enumerate(STEP)
    ]

    found = replayed(past)

    assert {one.recorded.observation.desired for one in found} == {2}
    assert max(one.decision.desired for one in found) == 6
    assert found[-1].decision.desired < 6
    assert max(one.ready for one in found) == 6


def test_a_replica_answers_after_a_cold_start() -> None:
    past = [
        Recorded(BEGIN + number * PERIOD_S, observed(1, arrival_rate=35.0)) for number in range(20)
    ]

    found = replayed(past, cold_start_s=120.0)

    asked = next(one.recorded.at_s for one in found if one.decision.desired > 1)
    answers = next(one.recorded.at_s for one in found if one.ready > 1)
    assert 120.0 <= answers - asked < 120.0 + 2 * PERIOD_S


def test_latencies_of_another_number_say_nothing() -> None:
    """The record misses its target with one replica; with two the load is carried."""
    late = [
        Recorded(
            BEGIN + number * PERIOD_S,
            observed(1, arrival_rate=14.0, ttft=ttft(9.0), queue_age_s=9.0),
        )
        for number in range(60)
    ]

    assert max(one.decision.desired for one in replayed(late)) <= 3


def test_a_past_without_figures_is_held_at_the_number_that_ran() -> None:
    blind = [
        Recorded(BEGIN + number * PERIOD_S, Observation(ready=3, desired=3)) for number in range(5)
    ]

    assert {one.decision.desired for one in replayed(blind)} == {3}
    assert replayed([]) == []


def test_bounds_of_another_policy_count() -> None:
    past = run(STEP)

    found = replayed(past, replace(POLICY, max_replicas=2))

    assert max(one.decision.desired for one in found) == 2
