"""The past of a service: windows, runs of equal decisions, cold starts."""

from dataclasses import replace

import pytest

from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.hindsight import PastLoad, Rule
from tandem_operator.scaling_law.history import History
from tests.unit.operator.scaling_law.measurements import observed


def decision(
    desired: int, reason: DecisionReason = DecisionReason.WITHIN_TARGETS, recommended: int = 2
) -> Decision:
    return Decision(desired=desired, reason=reason, recommended=recommended)


def with_load(at_s: float) -> Decision:
    return replace(decision(2), load=PastLoad(at_s, 1.5, 15.0))


def past(*numbers: int, period_s: float = 15.0) -> History:
    """Return the history of recommendations, the first one at 0."""
    history = History()
    for i, number in enumerate(numbers):
        history = history.append(i * period_s, observed(2), decision(2, recommended=number))
    return history


def test_appending_leaves_the_earlier_history_as_it_was() -> None:
    before = History()
    before.append(0.0, observed(2), decision(2))

    assert before == History()


def test_equal_decisions_are_one_entry_with_the_newest_inputs() -> None:
    history = History()
    for moment in range(100):
        newest = replace(decision(2), inputs={"arrival_rate": float(moment)})
        history = history.append(float(moment), observed(2), newest)

    (run,) = history.decisions
    assert (run.first_s, run.last_s) == (0.0, 99.0)
    assert run.decision.inputs == {"arrival_rate": 99.0}


def test_a_window_has_the_numbers_that_were_recommended_in_it() -> None:
    history = past(5, 3, 3, 4)

    assert list(history.within(45.0, 15.0)) == [3, 4]
    assert list(history.within(45.0, 100.0)) == [5, 3, 4]


@pytest.mark.parametrize(
    ("now", "window_s", "covers"),
    [(45.0, 45.0, True), (45.0, 46.0, False), (60.0, 60.0, True), (200.0, 60.0, False)],
)
def test_a_window_is_covered_by_decisions_without_a_gap(
    now: float, window_s: float, covers: bool
) -> None:
    assert past(5, 3, 3, 4).covers(now, window_s) is covers
    assert past(2, 2, 2, 2).covers(now, window_s) is covers


def test_nothing_covers_a_window_at_first() -> None:
    assert not History().covers(0.0, 1.0)


def test_replicas_added_in_a_window_are_counted() -> None:
    history = History()
    for moment, before, after in ((0.0, 1, 3), (20.0, 3, 4), (40.0, 4, 2)):
        history = history.append(moment, observed(before), decision(after))

    assert history.grown_by(45.0, 30.0) == 1
    assert history.grown_by(45.0, 60.0) == 3
    assert history.since_growth_s(45.0) == 25.0
    assert history.since_change_s(45.0) == 5.0


def test_the_time_without_a_starting_replica_is_counted() -> None:
    history = History().append(0.0, observed(3, ready=2), decision(3))
    history = history.append(15.0, observed(3), decision(3))

    assert History().settled_for_s(15.0) == float("inf")
    assert history.settled_for_s(20.0) == 20.0


@pytest.mark.parametrize(
    ("starts", "expected"), [((), 0.0), ((100.0,), 100.0), ((*range(1, 11),), 9.0)]
)
def test_the_cold_start_is_the_90th_percentile(starts: tuple[float, ...], expected: float) -> None:
    history = History()
    for seconds in starts:
        history = history.with_cold_start(seconds)

    assert history.cold_start_s == expected


def test_a_clock_that_is_set_back_begins_the_windows_again() -> None:
    history = past(5, 3, 3, 4).append(-100.0, observed(2), decision(2))

    assert list(history.within(-100.0, 1000.0)) == [2]
    assert history.settled_for_s(-100.0) == 0.0


@pytest.mark.parametrize(("age_s", "drains"), [(10.0, True), (18.5, False), (25.0, False)])
def test_a_queue_that_gets_younger_drains(age_s: float, drains: bool) -> None:
    history = History().append(0.0, observed(2, queue_age_s=20.0), decision(2))

    assert history.is_draining(15.0, age_s, 60.0) is drains
    assert not history.is_draining(90.0, age_s, 60.0)


def test_loads_are_kept_for_the_hour_that_rules_are_compared_on() -> None:
    history = History()
    for at_s in (0.0, 1800.0, 3700.0):
        history = history.append(at_s, observed(2), with_load(at_s))
    history = history.append(3715.0, observed(2), decision(2))

    assert [load.at_s for load in history.loads] == [1800.0, 3700.0]


def test_an_hour_of_loads_is_kept_at_the_shortest_period() -> None:
    history = History()
    for second in range(3700):
        history = history.append(float(second), observed(2), with_load(float(second)))

    assert len(history.loads) == 3600
    assert history.loads[0].at_s == 100.0


def test_loads_of_before_come_before_the_own_ones() -> None:
    history = History().append(100.0, observed(2), with_load(100.0))

    recalled = history.with_loads([PastLoad(at_s, 3.0, 9.0) for at_s in (40.0, 70.0, 100.0)])

    assert [load.at_s for load in recalled.loads] == [40.0, 70.0, 100.0]
    assert [load.replicas for load in recalled.loads] == [3.0, 3.0, 1.5]


def test_a_rule_is_in_force_until_another_is_chosen() -> None:
    chosen = Rule(900.0, 0.8)
    history = History().append(0.0, observed(2), replace(decision(2), rule=chosen))
    later = history.append(15.0, observed(2), decision(2))

    assert (history.rule, history.chosen_s) == (later.rule, later.chosen_s) == (chosen, 0.0)


def test_a_clock_that_was_set_back_forgets_the_loads() -> None:
    history = (
        History()
        .append(100.0, observed(2), with_load(100.0))
        .append(50.0, observed(2), with_load(50.0))
    )

    assert [load.at_s for load in history.loads] == [50.0]
