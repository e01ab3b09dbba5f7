"""Loads of a fleet: streams of requests whose rates change with time.

One profile gives single requests for replicas with a scheduler, and counts for those with flows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, pi, sin, sqrt
from typing import Final

from tandem_engine.simulate.random_numbers import RandomNumbers
from tandem_engine.simulate.workload import Arrival, Shape

_BIN_S: Final = 1.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one kind."""

    rate: Callable[[float], float]
    """Requests a second at a time in seconds; constant within each second."""
    shapes: Sequence[Shape]
    """From which each request is drawn."""

    @property
    def mean_shape(self) -> Shape:
        """Mean lengths."""
        count = len(self.shapes)
        num_input = sum(shape.num_input for shape in self.shapes) / count
        num_output = sum(shape.num_output for shape in self.shapes) / count
        return Shape(max(1, round(num_input)), max(1, round(num_output)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProfile:
    """A load by its name."""

    name: str
    duration_s: float
    streams: Sequence[Stream]
    grows_s: float | None = None
    """When it grows at once, and stays for some time; None: it has no such moment."""
    stays_s: float = 0.0
    """For how long."""

    def rate(self, now: float) -> float:
        """Return the requests a second of all streams."""
        return sum(stream.rate(now) for stream in self.streams)

    def twice(self) -> "LoadProfile":
        """Return the load and, when it is over, the same once more; they differ by chance."""
        once_s = self.duration_s
        streams = [replace(each, rate=_repeated(each.rate, once_s)) for each in self.streams]
        return replace(self, duration_s=2.0 * once_s, streams=streams)

    def requests(self, rng: RandomNumbers) -> Iterator[tuple[Arrival, float]]:
        """Yield Poisson arrivals one by one, in the order of time, each with the count 1."""
        now = 0.0
        while now < self.duration_s:
            arrivals = [
                Arrival(due_s, rng.choice(stream.shapes))
                for stream in self.streams
                for due_s in _poisson(
                    stream.rate(now), now, min(now + _BIN_S, self.duration_s), rng
                )
            ]
            yield from ((each, 1.0) for each in sorted(arrivals, key=lambda arrival: arrival.due_s))
            now += _BIN_S

    def flows(
        self, tick_s: float, rng: RandomNumbers | None = None
    ) -> Iterator[tuple[Arrival, float]]:
        """Yield the number of each stream's requests in each tick, at its middle.

        `rng` varies it as that of Poisson arrivals does; None: the mean. What chance does to the
        latencies of one replica is in its performance curve.
        """
        means = [stream.mean_shape for stream in self.streams]
        for tick in range(round(self.duration_s / tick_s)):
            middle = (tick + 0.5) * tick_s
            for stream, shape in zip(self.streams, means, strict=True):
                count = stream.rate(middle) * tick_s
                if rng is not None:
                    count += rng.gauss() * sqrt(count)
                if count > 0.0:
                    yield Arrival(middle, shape), count


def step(rate: float, duration_s: float = 1800.0) -> Callable[[float], float]:
    """Return a rate that is 0.35 · `rate` and doubles in the middle third of the time."""
    return lambda now: rate * (0.7 if duration_s / 3 <= now < duration_s * 2 / 3 else 0.35)


def ramp(rate: float, duration_s: float = 1800.0) -> Callable[[float], float]:
    """Return a rate that rises from 0.1 to 0.9 of `rate`, and falls again."""
    return lambda now: rate * (0.9 - 0.8 * abs(2.0 * now / duration_s - 1.0))


def bursts(
    rate: float, *, every_s: float = 600.0, long_s: float = 60.0
) -> Callable[[float], float]:
    """Return 0.3 · `rate` with bursts of 0.9 · `rate`, in the middle of each interval."""
    begin = (every_s - long_s) / 2.0
    return lambda now: rate * (0.9 if begin <= now % every_s < begin + long_s else 0.3)


def sine(rate: float, period_s: float = 1800.0) -> Callable[[float], float]:
    """Return a rate between 0.1 and 0.9 of `rate`, lowest at the start."""
    return lambda now: rate * (0.5 + 0.4 * sin(2.0 * pi * now / period_s - pi / 2.0))


def _repeated(rate: Callable[[float], float], every_s: float) -> Callable[[float], float]:
    return lambda now: rate(now % every_s)


def constant(rate: float) -> Callable[[float], float]:
    """Return a rate that stays."""
    return lambda _: rate


def within(
    rate: Callable[[float], float], begin_s: float, end_s: float
) -> Callable[[float], float]:
    """Return a rate that is 0 before and after a time."""
    return lambda now: rate(now) if begin_s <= now < end_s else 0.0


def trace_rate(
    trace: Sequence[Arrival], highest: float, *, bin_s: float = 10.0
) -> Callable[[float], float]:
    """Return the rate of a trace in bins, again and again, scaled to `highest` in its busiest.

    The last bin, which the trace ends in, is left out.
    """
    counts = [0] * max(1, int(trace[-1].due_s / bin_s))
    for arrival in trace:
        number = int(arrival.due_s / bin_s)
        if number < len(counts):
            counts[number] += 1
    scale = highest / max(counts)
    return lambda now: counts[int(now / bin_s) % len(counts)] * scale


def markov_modulated(
    rng: RandomNumbers, duration_s: float, *, calm_s: float, busy_s: float, calm: float
) -> Callable[[float], float]:
    """Return a rate that is 1 in busy times and `calm` between them, again and again.

    Both last for exponentially distributed times: with Poisson arrivals it is a Markov-modulated
    Poisson process, the usual model of bursts.

    Args:
        rng: Decides the times.
        duration_s: After which they are repeated.
        calm_s: Mean length of a calm time, which comes first.
        busy_s: Mean length of a busy one.
        calm: Rate of a calm time.
    """
    rates: list[float] = []
    while len(rates) < duration_s:
        for rate, mean_s in ((calm, calm_s), (1.0, busy_s)):
            rates += [rate] * max(1, round(rng.expovariate(1.0 / mean_s)))
    del rates[int(duration_s) :]
    return lambda now: rates[int(now) % len(rates)]


def day(rate: Callable[[float], float]) -> Callable[[float], float]:
    """Return a rate that is lowest at midnight, a quarter of that at noon."""
    return lambda now: rate(now) * (0.625 - 0.375 * sin(2.0 * pi * now / _DAY_S + pi / 2.0))


def _poisson(rate: float, begin_s: float, end_s: float, rng: RandomNumbers) -> Iterator[float]:
    now = begin_s + (rng.expovariate(rate) if rate > 0.0 else inf)
    while now < end_s:
        yield now
        now += rng.expovariate(rate)
