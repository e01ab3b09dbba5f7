"""How a replica performs under steady load, measured once on the real scheduler.

A `FluidReplicas` interpolates in it. `calibrate` runs `SchedulerReplica`s at a series of rates.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from tandem_engine.simulate.machines import Machine
from tandem_engine.simulate.random_numbers import RandomNumbers
from tandem_engine.simulate.replica import Completion, ReplicaState
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.workload import Arrival, Shape, speed_up

_EDGES: Final = (0.0, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.98, 1.0)
_CELLS: Final = sorted({round(each, 4) for edge in _EDGES for each in (edge, 1.0 - edge)})
SHARES: Final = tuple(high - low for low, high in pairwise(_CELLS))
"""Shares of the requests that each pair of latencies of a `LoadPoint` stands for."""
_MIDDLES: Final = tuple((low + high) / 2.0 for low, high in pairwise(_CELLS))
_WARM_UP: Final = 0.25
"""Share of a load in which a replica comes to its steady state; it is not counted."""
_BURST: Final = 48
_OVERLOAD: Final = 1.25
"""Rate of an overload, as a multiple of what an idle replica takes at once."""
_MILD_OVERLOAD: Final = 1.15
"""Rate of the overload that an autoscaler lets come about, as a multiple of the overload rate."""
_PARTS: Final = (0.2, 0.35, 0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Rates of the points, as shares of the overload rate."""
_LEAST_REQUESTS: Final = 200
_LEAST_SHARE: Final = 0.85
"""Share that meets both targets, below which a load is an overload and no point of a curve."""

Latencies = Sequence[tuple[float, float]]
"""TTFT and TPOT in seconds, one pair for each of `SHARES`.

A request with a long TTFT is paired with a short TPOT: few miss both targets.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One replica under one steady load."""

    rate: float
    """Requests a second."""
    num_ongoing: float
    """Requests in process or waiting, on average."""
    kv_usage: float
    latencies: Latencies


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceCurve:
    """A replica's performance by its load, for one mix of requests."""

    points: Sequence[LoadPoint]
    """By rising rate, up to the highest at which no queue grows."""
    capacity: float
    """Requests a second at which the share of requests that meets both targets is the SLO's."""
    overload_rate: float
    """Work, in mean requests a second, that a replica with a growing queue completes."""
    overload_share: float
    """Requests of those that are in time: the scheduler prefers requests that can still be."""
    burst_rate: float
    """Prompts a second that an idle replica computes."""
    mean_shape: Shape
    work_s: float
    """Price of a mean request without the base of steps, in seconds."""
    machine: Machine

    def at(self, num_ongoing: float) -> LoadPoint:
        """Return the point with so many requests in process, between the measured ones."""
        points = self.points
        above = bisect_left(points, num_ongoing, key=lambda point: point.num_ongoing)
        if above == 0:
            return points[0]
        if above == len(points):
            return points[-1]
        low, high = points[above - 1], points[above]
        part = (num_ongoing - low.num_ongoing) / (high.num_ongoing - low.num_ongoing)
        return _between(low, high, part)

    def work(self, shape: Shape) -> float:
        """Return the work of a request, in mean requests."""
        return work_s(self.machine, shape) / self.work_s


def work_s(machine: Machine, shape: Shape) -> float:
    """Price of a request without the base of steps: its prompt, and its decode rows."""
    context = shape.num_input + shape.num_output / 2.0
    row = machine.row_s + machine.token_s + machine.cache_s * context
    return prompt_s(machine, shape.num_input) + shape.num_output * row


def stay_s(latencies: Latencies, shape: Shape) -> float:
    """Mean time from the arrival of requests of a shape to their ends."""
    others = shape.num_output - 1
    return sum(
        share * (ttft_s + tpot_s * others)
        for share, (ttft_s, tpot_s) in zip(SHARES, latencies, strict=True)
    )


def prompt_s(machine: Machine, num_tokens: int) -> float:
    """Price of a prompt without the base of steps."""
    return machine.token_s * num_tokens + machine.attention_s * num_tokens**2 / 2.0


def calibrate(
    make_replica: Callable[[], SchedulerReplica],
    shapes: Sequence[Shape],
    machine: Machine,
    rng: RandomNumbers,
    *,
    ttft_s: float,
    tpot_s: float,
    share: float = 0.9,
    num_requests: int = 400,
) -> PerformanceCurve:
    """Measure a replica at rising rates until its queue grows.

    Args:
        make_replica: Returns a new one.
        shapes: Lengths of requests, from which those of the load are drawn.
        machine: The replica's.
        rng: Decides the load.
        ttft_s: Target of the time to the first token.
        tpot_s: Target of the time of a token after it.
        share: Share of requests that must meet both.
        num_requests: Requests of each load.
    """
    mean_shape = Shape(
        round(sum(shape.num_input for shape in shapes) / len(shapes)),
        round(sum(shape.num_output for shape in shapes) / len(shapes)),
    )
    mean_work_s = sum(work_s(machine, shape) for shape in shapes) / len(shapes)
    burst_rate = _burst_rate(make_replica(), mean_shape, ttft_s)
    # One load at every rate: rates differ by what they do, not by chance.
    load = _unit_load(shapes, rng, num_requests)
    overload = _run(make_replica(), load, burst_rate * _OVERLOAD)
    overload_rate = _work_rate(overload, machine) / mean_work_s
    mild = _run(make_replica(), load, overload_rate * _MILD_OVERLOAD)
    overload_rate = max(overload_rate, _work_rate(mild, machine) / mean_work_s)
    counted, seconds = mild.completed_in_overload
    in_time = sum(_meets(each, ttft_s, tpot_s) for each in counted) / seconds
    points: list[LoadPoint] = []
    attained: list[tuple[float, float]] = []
    for part in _PARTS:
        # At low rates a replica takes many steps for few requests, which differ little.
        count = max(_LEAST_REQUESTS, round(num_requests * part))
        ended = _run(make_replica(), load[:count], part * overload_rate)
        good = sum(_meets(each, ttft_s, tpot_s) for each in ended.counted) / len(ended.counted)
        attained.append((part * overload_rate, good))
        if points and good < _LEAST_SHARE:
            break
        points.append(ended.point(mean_shape))
    return PerformanceCurve(
        points=_rising(points),
        capacity=_highest(attained, share),
        overload_rate=overload_rate,
        overload_share=min(1.0, in_time / overload_rate),
        burst_rate=max(burst_rate, overload_rate),
        mean_shape=mean_shape,
        work_s=mean_work_s,
        machine=machine,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    rate: float
    span_s: float
    completions: Sequence[Completion]
    states: Sequence[ReplicaState]

    @property
    def counted(self) -> list[Completion]:
        return [each for each in self.completions if each.arrived_s > _WARM_UP * self.span_s]

    @property
    def completed_in_overload(self) -> tuple[list[Completion], float]:
        """What was completed in the second half of the load, and its seconds.

        Later ones are not slowed down by new prompts.
        """
        begin = self.span_s / 2.0
        ended = [each for each in self.completions if begin < each.at_s <= self.span_s]
        return ended, self.span_s - begin

    def point(self, mean_shape: Shape) -> LoadPoint:
        ttfts = sorted(each.ttft_s for each in self.counted)
        tpots = sorted(each.tpot_s for each in self.counted if each.tpot_s is not None)
        latencies = [(_at(ttfts, each), _at(tpots, 1.0 - each)) for each in _MIDDLES]
        return LoadPoint(
            rate=self.rate,
            # By Little's law, from what flows know of a stay: so they come to this very point.
            num_ongoing=self.rate * stay_s(latencies, mean_shape),
            kv_usage=sum(state.kv_usage for state in self.states) / len(self.states),
            latencies=latencies,
        )


def _unit_load(shapes: Sequence[Shape], rng: RandomNumbers, num_requests: int) -> list[Arrival]:
    """Return Poisson arrivals, one a second."""
    now, load = 0.0, []
    for _ in range(num_requests):
        now += rng.expovariate(1.0)
        load.append(Arrival(now, rng.choice(shapes)))
    return load


def _run(replica: SchedulerReplica, load: Sequence[Arrival], rate: float) -> _Load:
    completions: list[Completion] = []
    states: list[ReplicaState] = []
    arrivals = speed_up(load, rate)
    for number, arrival in enumerate(arrivals):
        completions += replica.advance(arrival.due_s).completions
        if number >= _WARM_UP * len(load):
            states.append(replica.state())
        replica.submit(arrival)
    completions += replica.advance(inf).completions
    return _Load(
        rate=rate,
        span_s=arrivals[-1].due_s,
        completions=completions,
        states=states,
    )


def _work_rate(load: _Load, machine: Machine) -> float:
    """Return the work completed a second: an overloaded scheduler prefers short requests."""
    counted, seconds = load.completed_in_overload
    return sum(work_s(machine, each.shape) for each in counted) / seconds


def _burst_rate(replica: SchedulerReplica, shape: Shape, ttft_s: float) -> float:
    # All of one length: of a mix the scheduler would begin with the short ones.
    for _ in range(_BURST):
        replica.submit(Arrival(0.0, shape))
    return max(1, len(replica.advance(ttft_s).first_tokens)) / ttft_s


def _rising(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """Leave out points at which chance made fewer requests ongoing than at a lower rate."""
    rising = [points[0]]
    for point in points[1:]:
        if point.num_ongoing > rising[-1].num_ongoing:
            rising.append(point)
    return rising


def _highest(attained: Sequence[tuple[float, float]], share: float) -> float:
    """Return the rate from which on fewer than `share` meet both targets, between two points."""
    for (low, more), (high, less) in pairwise(attained):
        if less < share <= more:
            return low + (high - low) * (more - share) / (more - less)
    return attained[-1][0] if attained[-1][1] >= share else attained[0][0]


def _meets(completion: Completion, ttft_s: float, tpot_s: float) -> bool:
    return completion.ttft_s <= ttft_s and (completion.tpot_s or 0.0) <= tpot_s


def _at(ordered: Sequence[float], share: float) -> float:
    rank = (len(ordered) - 1) * share
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def _between(low: LoadPoint, high: LoadPoint, part: float) -> LoadPoint:
    def mix(first: float, second: float) -> float:
        return first + (second - first) * part

    return LoadPoint(
        rate=mix(low.rate, high.rate),
        num_ongoing=mix(low.num_ongoing, high.num_ongoing),
        kv_usage=mix(low.kv_usage, high.kv_usage),
        latencies=[
            (mix(a[0], b[0]), mix(a[1], b[1]))
            for a, b in zip(low.latencies, high.latencies, strict=True)
        ],
    )
