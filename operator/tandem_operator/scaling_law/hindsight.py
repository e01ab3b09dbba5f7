"""The rule of scaling that would have kept the promises with the fewest replicas so far; pure.

A rule asks for `factor` times the highest load of a window. Of some rules the one is taken that
would have cost least over the past hour: replicas from the moment at which they are asked for,
answers one cold start later, and requests that miss a target. So a load that moves is followed
closely, and one whose bursts are over before a replica could answer gets a steady number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

MEMORY_S: Final = 3600.0
"""Seconds of the past that rules are compared on."""

_LEAST_S: Final = 180.0
"""Seconds of the past without which nothing is chosen."""
_LEAST_PERIOD_S: Final = 60.0
_PERIOD_SHARE: Final = 0.1
"""Of the past that must be new before rules are compared again."""

GRAIN_S: Final = 30.0
"""Seconds in which loads are taken together: the highest counts."""
_WINDOWS_S: Final = (60.0, 150.0, 300.0, 900.0, MEMORY_S)
_FACTORS: Final = tuple(0.45 * 1.1**step for step in range(13))

_MISSED: Final = (
    (0.0, 0.0),
    (0.6, 0.002),
    (0.8, 0.012),
    (1.0, 0.06),
    (1.3, 0.42),
    (2.0, 0.75),
    (4.0, 1.0),
)
"""Load of a replica as a share of its capacity, and the share of its requests that miss a target:
from 0.8 to 1.3 as measured with steady loads (`benchmarks.autoscaling accuracy`), where one in ten
may; the others are estimates, since no load stays there for long."""

_STEPS: Final = 64
"""In which a load of one capacity is told apart."""


def _table() -> list[float]:
    """Return `_MISSED` at each step, since it is asked for ten thousand times a choice."""
    return [
        fewer + (more - fewer) * (step / _STEPS - low) / (high - low)
        for (low, fewer), (high, more) in pairwise(_MISSED)
        for step in range(round(low * _STEPS), round(high * _STEPS))
    ] + [1.0]


_MISSED_AT: Final = _table()
_MOST_STEPS: Final = len(_MISSED_AT) - 1

_LATE_COST: Final = 0.4
_TOO_LATE_COST: Final = 0.6
"""Replicas, as a share of those that the load takes on average, that are spent to let as many
requests fewer be late as may be late; more of them where too many would be."""
_SPENT: Final = 0.5
"""Share of the requests that may be late which the past may have had."""
_BETTER: Final = 0.03
"""Share of the mean load by which another rule must be cheaper than the one in force."""

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Rule:
    """As many replicas as `factor` times the highest load of the last `window_s` seconds."""

    window_s: float
    factor: float


FIRST: Final = Rule(300.0, 1.25)
"""In force while the past is too short to choose by."""


@dataclass(frozen=True, slots=True)
class PastLoad:
    """The load of one moment."""

    at_s: float
    replicas: float
    """Replicas that it takes: requests a second over the predicted capacity."""
    rate: float
    """Requests a second."""


def is_due(past: Sequence[PastLoad], chosen_s: float | None, now: float) -> bool:
    """Return True when enough of the past is new to choose again."""
    length_s = now - past[0].at_s if past else 0.0
    if length_s < _LEAST_S:
        return False
    period_s = max(_LEAST_PERIOD_S, _PERIOD_SHARE * length_s)
    return chosen_s is None or not 0 <= now - chosen_s < period_s


def replicas_by(rule: Rule, past: Sequence[PastLoad], now: float) -> float | None:
    """Return the replicas that a rule asks for; None: nothing is known of its window."""
    within = (load.replicas for load in past if now - load.at_s <= rule.window_s)
    highest = max(within, default=None)
    return None if highest is None else rule.factor * highest


def lasting_load(past: Sequence[PastLoad], now: float, seconds: float) -> float:
    """Return the load that there was for all of the last seconds; 0: they are not all known."""
    if not past or now - past[0].at_s < seconds:
        return 0.0
    return min((load.replicas for load in past if now - load.at_s <= seconds), default=0.0)


def choose(
    past: Sequence[PastLoad],
    in_force: Rule,
    *,
    cold_start_s: float,
    window_s: float,
    late_share: float,
) -> Rule:
    """Return the rule that would have cost least.

    Args:
        past: Loads of some moments, the oldest first.
        in_force: Kept unless another one is clearly cheaper.
        cold_start_s: After which a replica that is asked for answers.
        window_s: Over which each load was measured, which is half as old as that.
        late_share: Of the requests, that may miss a target.
    """
    past = _coarse(past)
    spans = _served_by(past, cold_start_s, window_s / 2.0)
    known = [(load, span) for load, span in zip(past, spans, strict=True) if span is not None]
    total = sum(load.rate for load, _ in known)
    mean = sum(load.replicas for load, _ in known) / max(len(known), 1)
    if not total or not mean:
        return in_force
    best, least = in_force, float("inf")
    for window in dict.fromkeys((*_WINDOWS_S, in_force.window_s)):
        highest = _highest(past, window)
        asked = highest[len(past) - len(known) :]
        served = [min(highest[begin:end]) for _, (begin, end) in known]
        for factor in dict.fromkeys((*_FACTORS, in_force.factor)):
            replicas = sum(max(1, ceil(factor * load - _ROUNDING)) for load in asked)
            missed = sum(
                load.rate * _missed(load.replicas / max(1, ceil(factor * least_load - _ROUNDING)))
                for (load, _), least_load in zip(known, served, strict=True)
            )
            rule = Rule(window, factor)
            cost = replicas / len(known) / max(mean, 1.0)
            cost += _cost_of_late(missed / total, late_share)
            cost -= _BETTER if rule == in_force else 0.0
            if cost < least:
                best, least = rule, cost
    return best


def _coarse(past: Sequence[PastLoad]) -> list[PastLoad]:
    """Return the loads, those within a grain of the first of them as one."""
    coarse: list[PastLoad] = []
    begun_s = 0.0
    for load in past:
        if coarse and load.at_s - begun_s < GRAIN_S:
            last = coarse[-1]
            highest = max(last.replicas, load.replicas)
            coarse[-1] = PastLoad(load.at_s, highest, last.rate + load.rate)
        else:
            coarse.append(load)
            begun_s = load.at_s
    return coarse


def _served_by(
    past: Sequence[PastLoad], cold_start_s: float, age_s: float
) -> list[tuple[int, int] | None]:
    """Return for each load the moments whose least number answered it; None: they are not known.

    A number that grows answers one cold start later, one that falls at once.
    """
    spans: list[tuple[int, int] | None] = []
    begin = end = 0
    for load in past:
        until_s = load.at_s - age_s
        while end < len(past) and past[end].at_s <= until_s:
            end += 1
        while past[begin].at_s < until_s - cold_start_s:
            begin += 1
        is_known = end > begin and past[0].at_s <= until_s - cold_start_s
        spans.append((begin, end) if is_known else None)
    return spans


def _highest(past: Sequence[PastLoad], window_s: float) -> list[float]:
    """Return for each moment the highest load of the window that ends with it."""
    highest: list[float] = []
    falling: list[PastLoad] = []
    """Loads that no later one exceeds."""
    first = 0
    for load in past:
        while len(falling) > first and falling[-1].replicas <= load.replicas:
            falling.pop()
        falling.append(load)
        while falling[first].at_s < load.at_s - window_s:
            first += 1
        highest.append(falling[first].replicas)
    return highest


def _missed(use: float) -> float:
    """Return the share of requests that miss a target at a share of the capacity."""
    return _MISSED_AT[min(int(use * _STEPS), _MOST_STEPS)]


def _cost_of_late(missed: float, late_share: float) -> float:
    """Return the replicas that a share of missed requests is worth, in mean loads."""
    late = missed / late_share
    return _LATE_COST * late + _TOO_LATE_COST * max(late - _SPENT, 0.0)
