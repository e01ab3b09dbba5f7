"""The last replica goes and the first one comes: by one request or by a million, once."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import DecisionReason as Reason
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import Observation, SignalProblem
from tests.unit.operator.scaling_law.measurements import PERIOD_S, POLICY, Loop, idle, observed

MAY_SLEEP: Final = replace(POLICY, min_replicas=0)


def at_zero(refused: int | None, **values: Any) -> Observation:
    """Return a service without replicas, of which there is nothing to measure."""
    return Observation(ready=0, desired=0, refused=refused, **values)


def starting() -> Observation:
    return Observation(ready=0, starting=1, desired=1, problem=SignalProblem.MISSING)


@pytest.mark.parametrize(
    ("observation", "changes", "result"),
    [
        pytest.param(at_zero(0), {}, (0, Reason.NO_TRAFFIC), id="no request"),
        pytest.param(at_zero(1), {}, (1, Reason.REQUEST_AT_ZERO), id="one request"),
        pytest.param(at_zero(10**9), {}, (1, Reason.REQUEST_AT_ZERO), id="a flood"),
        pytest.param(at_zero(None), {}, (0, Reason.METRICS_MISSING), id="nobody knows"),
        pytest.param(at_zero(3, room=0), {}, (0, Reason.CAPACITY_UNAVAILABLE), id="no room"),
        pytest.param(
            at_zero(0), {"min_replicas": 2}, (2, Reason.BOUNDS_CHANGED), id="a schedule begins"
        ),
    ],
)
def test_decisions_at_zero(
    observation: Observation, changes: dict[str, Any], result: tuple[int, Reason]
) -> None:
    decision = decide(observation, replace(MAY_SLEEP, **changes), History(), 0.0)

    assert (decision.desired, decision.reason) == result


def test_without_series_of_replicas_nothing_is_missing_at_zero() -> None:
    """There is nothing to scrape, so an absent series is no blindness."""
    observation = at_zero(0, arrival_rate=None, queue_age_s=None)

    assert decide(observation, MAY_SLEEP, History(), 0.0).reason is Reason.NO_TRAFFIC


def test_a_service_that_was_woken_stays_until_it_was_idle_for_the_window() -> None:
    loop = Loop(MAY_SLEEP)
    assert loop.step(at_zero(1)).desired == 1
    for _ in range(8):
        assert loop.step(starting()).desired == 1
    answers_s = loop.now
    loop.step(observed(1, arrival_rate=0.2))

    last = loop.run(idle(1), seconds=3600)

    assert (last.desired, last.reason) == (0, Reason.UNDERUSED)
    assert loop.now - answers_s >= MAY_SLEEP.down_window_s


def test_a_short_window_leaves_time_for_clients_that_were_told_to_come_again() -> None:
    loop = Loop(replace(MAY_SLEEP, down_window_s=0.0))
    loop.step(at_zero(1))
    woken_s = loop.now

    assert loop.run(idle(1), seconds=3600).desired == 0
    assert loop.now - woken_s >= MAY_SLEEP.idle_window_s
    assert replace(MAY_SLEEP, down_window_s=0.0).idle_window_s > 2 * 60, "Retry-After, twice"


def test_requests_that_come_while_the_last_replica_ends_keep_it() -> None:
    ending = observed(1, desired=0, arrival_rate=3.0)

    decision = decide(ending, replace(MAY_SLEEP, up_window_s=0.0), History(), 0.0)

    assert decision.desired == 1


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.sampled_from([1, 2, 40])), max_size=12),
    st.integers(1, 8),
    st.integers(0, 600),
)
def test_whatever_is_refused_wakes_one_replica_at_a_time(
    floods: list[tuple[int, int]], max_replicas: int, window_s: int
) -> None:
    """Each wake-up costs one replica, and the next one cannot follow within the window."""
    policy = replace(MAY_SLEEP, max_replicas=max_replicas, down_window_s=float(window_s))
    loop = Loop(policy)
    desired, woken_s = 0, -1e9
    for refused, periods in floods:
        for _ in range(periods):
            seen = at_zero(refused) if desired == 0 else idle(1, ready=desired, desired=desired)
            began_s = loop.now
            after = loop.step(seen).desired
            assert after in {0, 1}
            if after > desired:
                assert refused > 0
                assert began_s - woken_s >= max(policy.down_window_s, policy.idle_window_s)
                woken_s = began_s
            desired = after


@given(st.none() | st.integers(0, 5), st.sampled_from([0.0, PERIOD_S, 10_000.0]))
def test_deciding_again_at_zero_decides_the_same(refused: int | None, later_s: float) -> None:
    loop = Loop(MAY_SLEEP)
    first = loop.step(at_zero(refused))
    again = decide(at_zero(refused), MAY_SLEEP, loop.history, loop.now + later_s)

    assert again.desired == first.desired
