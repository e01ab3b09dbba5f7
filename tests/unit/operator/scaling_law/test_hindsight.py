"""The rule that would have cost least over a past that is known."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.scaling_law.hindsight import (
    FIRST,
    MEMORY_S,
    PastLoad,
    Rule,
    choose,
    is_due,
    lasting_load,
    replicas_by,
)

PERIOD_S = 15.0
COLD_START_S = 60.0


def past_of(load: Callable[[float], float], seconds: float = MEMORY_S) -> list[PastLoad]:
    """Return what is measured of a load in replicas: its mean over the minute before."""
    moments = [number * PERIOD_S for number in range(int(seconds / PERIOD_S))]
    means = [sum(load(at_s - before) for before in range(0, 60, 5)) / 12 for at_s in moments]
    return [PastLoad(at_s, mean, 2.0 * mean) for at_s, mean in zip(moments, means, strict=True)]


def chosen(past: list[PastLoad], cold_start_s: float = COLD_START_S) -> Rule:
    return choose(past, FIRST, cold_start_s=cold_start_s, window_s=60.0, late_share=0.1)


def asked(rule: Rule, past: list[PastLoad]) -> list[float]:
    """Return what the rule asks for at each moment of the second half."""
    half = len(past) // 2
    numbers = [replicas_by(rule, past[: end + 1], past[end].at_s) for end in range(half, len(past))]
    return [number for number in numbers if number is not None]


def bursts(now: float) -> float:
    return 9.0 if now % 600 < 60 else 3.0


def wave(now: float) -> float:
    return 5.0 - 4.0 * math.cos(2 * math.pi * now / 1800)


def test_bursts_that_end_before_a_replica_answers_get_a_steady_number() -> None:
    past = past_of(bursts)
    numbers = asked(chosen(past), past)

    assert min(numbers) > 6.0
    assert max(numbers) < 1.1 * min(numbers)


def test_the_same_bursts_are_followed_where_replicas_start_at_once() -> None:
    past = past_of(lambda now: 9.0 if now % 1800 < 300 else 3.0)
    numbers = asked(chosen(past, cold_start_s=1.0), past)

    assert min(numbers) < 4.0
    assert max(numbers) > 8.5


@pytest.mark.parametrize("height", [10.0, 50.0])
@pytest.mark.parametrize("at_s", [600.0, 1800.0, 3300.0])
def test_one_spike_in_an_hour_is_not_held_for_the_next(height: float, at_s: float) -> None:
    past = past_of(lambda now: height if at_s <= now < at_s + 120 else 1.0)

    assert (replicas_by(chosen(past), past, past[-1].at_s) or 0.0) < 1.5


def test_a_load_that_moves_slowly_is_followed() -> None:
    past = past_of(wave)
    numbers = asked(chosen(past), past)

    assert min(numbers) < 3.0
    assert 8.5 < max(numbers) < 12.0


@pytest.mark.parametrize("load", [5.0, 50.0, 500.0])
def test_a_steady_load_gets_what_it_takes(load: float) -> None:
    past = past_of(lambda _: load)

    assert all(load <= number < 1.25 * load for number in asked(chosen(past), past))


def test_stricter_targets_get_more_replicas() -> None:
    past = past_of(wave)
    numbers = [
        sum(asked(choose(past, FIRST, cold_start_s=60.0, window_s=60.0, late_share=late), past))
        for late in (0.2, 0.1, 0.01)
    ]

    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[-1]


@pytest.mark.parametrize("seconds", [0.0, 15.0, 75.0])
def test_a_past_that_is_shorter_than_a_start_chooses_nothing(seconds: float) -> None:
    assert chosen(past_of(wave, seconds)) == FIRST


def test_without_a_request_nothing_is_chosen() -> None:
    assert chosen(past_of(lambda _: 0.0)) == FIRST


@given(
    st.lists(st.floats(0.0, 100.0), min_size=2, max_size=60), st.sampled_from([1.0, 60.0, 400.0])
)
def test_a_rule_is_kept_while_the_past_is_the_same(loads: list[float], cold_start_s: float) -> None:
    past = [PastLoad(15.0 * number, load, load) for number, load in enumerate(loads)]
    rule = chosen(past, cold_start_s)
    again = choose(past, rule, cold_start_s=cold_start_s, window_s=60.0, late_share=0.1)

    assert 0.0 < rule.factor < 2.0
    assert again == rule


def test_rules_are_compared_when_enough_is_new() -> None:
    past = past_of(wave, 1200.0)

    assert not is_due([], None, 0.0)
    assert not is_due(past_of(wave, 150.0), None, 150.0)
    assert is_due(past, None, 1200.0)
    assert not is_due(past, 1100.0, 1200.0)
    assert is_due(past, 1080.0, 1200.0)
    assert is_due(past, 2000.0, 1200.0), "the clock was set back"


def test_a_load_lasts_only_if_all_of_the_time_is_known() -> None:
    past = [PastLoad(15.0 * number, 4.0 + number % 2, 1.0) for number in range(5)]

    assert lasting_load(past, 60.0, 60.0) == 4.0
    assert lasting_load(past, 75.0, 15.0) == 4.0
    assert lasting_load(past, 60.0, 75.0) == 0.0
    assert lasting_load([], 60.0, 60.0) == 0.0


def test_a_rule_says_nothing_of_a_window_without_a_load() -> None:
    assert replicas_by(Rule(60.0, 1.0), [PastLoad(0.0, 5.0, 1.0)], 90.0) is None
    assert replicas_by(Rule(60.0, 0.5), [PastLoad(0.0, 5.0, 1.0)], 60.0) == 2.5
