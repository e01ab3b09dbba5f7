"""Runs with several seeds as one row, and rivals at the attainment of Tandem. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Final

from benchmarks.autoscaling.runs import FleetRun

OWN: Final = "tandem"
FLAP_WINDOW_S: Final = 300.0
"""Time within which a change back is a flap: the stabilization window of an HPA, and of ours."""

_SHARE: Final = 0.9
"""Share of requests that is to meet both targets."""
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the seeds."""

    mean: float
    deviation: float
    """Standard deviation; 0 with one seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One controller on one load, over the seeds."""

    load: str
    size: int
    controller: str
    model: str
    num_seeds: int
    attainment: Spread
    replica_hours: Spread
    settling_periods: Spread | None
    """None: the load has no step, or it did not settle with every seed."""
    num_unsettled: int
    """Seeds with which it did not settle after the step."""
    num_flaps: Spread
    most: Spread
    """The highest number of replicas."""
    wall_s: Spread

    @property
    def family(self) -> str:
        """The controller's name without a parameter."""
        return self.controller.partition("=")[0]

    @property
    def is_tuned(self) -> bool:
        """True for one with a parameter of its own."""
        return "=" in self.controller

    def beats(self, other: "Summary") -> bool:
        """Return True for at least its attainment at no more replica-hours, one of them better."""
        mine = (self.attainment.mean, -self.replica_hours.mean)
        theirs = (other.attainment.mean, -other.replica_hours.mean)
        return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def summarize(runs: Sequence[FleetRun]) -> list[Summary]:
    """Return a row for each load, size and controller, in the order of the runs."""
    groups: dict[tuple[str, int, str], list[FleetRun]] = {}
    for run in runs:
        task = run.task
        groups.setdefault((task.load, task.size, task.controller), []).append(run)
    return [_summary(group) for group in groups.values()]


def best_tuned(rows: Sequence[Summary], family: str, goal: float) -> Summary | None:
    """Return the fewest replica-hours at `goal` attainment or more, else the highest attainment.

    Args:
        rows: Of one load and size.
        family: A controller, with all its parameters and without.
        goal: Share of requests that meet both targets.
    """
    own = [row for row in rows if row.family == family]
    enough = [row for row in own if row.attainment.mean >= goal]
    if enough:
        return min(enough, key=lambda row: row.replica_hours.mean)
    return max(own, key=lambda row: row.attainment.mean, default=None)


def hours_at(rows: Sequence[Summary], family: str, goal: float) -> float | None:
    """Return a family's replica-hours at an attainment, between the rows that no other one beats.

    None: its rows all attain less, or all attain more.

    Args:
        rows: Of one load and size.
        family: A controller, with all its parameters and without.
        goal: Share of requests that meet both targets.
    """
    kept = unbeaten(row for row in rows if row.family == family)
    for low, high in pairwise(kept):
        if low.attainment.mean <= goal <= high.attainment.mean:
            span = high.attainment.mean - low.attainment.mean
            part = (goal - low.attainment.mean) / span if span else 0.0
            before, after = low.replica_hours.mean, high.replica_hours.mean
            return before + part * (after - before)
    return None


def unbeaten(rows: Iterable[Summary]) -> list[Summary]:
    """Return the rows that no other one beats, by rising replica-hours."""
    every = list(rows)
    kept = [row for row in every if not any(other.beats(row) for other in every)]
    return sorted(kept, key=lambda row: row.replica_hours.mean)


def settling_periods(run: FleetRun) -> float | None:
    """Return the control periods from a step to promises that are kept, less the cold start.

    Kept: of the requests that arrive, nine in ten meet both targets, in every minute until the
    load falls again. None: never, or there is no step.
    """
    if run.grows_s is None or run.duration_s <= run.grows_s:
        return None
    period_s = run.period_s
    end = int(min(run.grows_s + run.stays_s, run.duration_s) / period_s)
    begin = int(run.grows_s / period_s)
    minute = max(1, round(_MINUTE_S / period_s))
    periods = run.result.periods[begin:end]
    settled = len(periods)
    for number in range(len(periods) - minute, -1, -1):
        window = periods[number : number + minute]
        arrived = sum(period.num_arrived for period in window)
        if sum(period.num_met for period in window) < _SHARE * arrived:
            break
        settled = number
    if settled == len(periods):
        return None
    return max(0.0, settled - run.cold_start_s / period_s)


def num_flaps(counts: Sequence[tuple[float, int]], window_s: float) -> int:
    """Return how often the number changed back within a time: up and down, or down and up."""
    flaps = 0
    last: tuple[float, int] | None = None
    for (_, before), (now, after) in pairwise(counts):
        direction = (after > before) - (after < before)
        if not direction:
            continue
        if last is not None and direction != last[1] and now - last[0] < window_s:
            flaps += 1
        last = (now, direction)
    return flaps


def _summary(runs: Sequence[FleetRun]) -> Summary:
    task = runs[0].task
    settled = [settling_periods(run) for run in runs]
    known = [each for each in settled if each is not None]
    has_step = runs[0].grows_s is not None and runs[0].duration_s > runs[0].grows_s
    return Summary(
        load=task.load,
        size=task.size,
        controller=task.controller,
        model=runs[0].model,
        num_seeds=len(runs),
        attainment=_spread(run.result.attainment for run in runs),
        replica_hours=_spread(run.result.replica_hours for run in runs),
        settling_periods=_spread(known) if len(known) == len(runs) else None,
        num_unsettled=len(runs) - len(known) if has_step else 0,
        num_flaps=_spread(num_flaps(_counts(run), FLAP_WINDOW_S) for run in runs),
        most=_spread(max(count for _, count in _counts(run)) for run in runs),
        wall_s=_spread(run.wall_s for run in runs),
    )


def _counts(run: FleetRun) -> list[tuple[float, int]]:
    return [(moment.now_s, moment.desired) for moment in run.result.moments]


def _spread(values: Iterable[float]) -> Spread:
    every = [float(value) for value in values]
    return Spread(fmean(every), stdev(every) if len(every) > 1 else 0.0)
