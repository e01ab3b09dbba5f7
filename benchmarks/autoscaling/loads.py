"""The loads by name, scaled to a fleet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Final

from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.load_profile import (
    LoadProfile,
    Stream,
    bursts,
    constant,
    day,
    markov_modulated,
    ramp,
    sine,
    step,
    trace_rate,
    within,
)
from tandem_engine.simulate.performance_curve import PerformanceCurve
from tandem_engine.simulate.workload import Arrival, Shape

_HALF_HOUR_S: Final = 1800.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
_TICK_S: Final = 2.0
_LONG_TICK_S: Final = 5.0
_LONG: Final = Shape(8000, 150)
_BASE: Final = 0.35
_LONG_SHARE: Final = 0.4
"""Of the fleet's capacity, by long prompts."""
_IDLE_RATE: Final = 1.0 / 300.0
_CALM: Final = 1.0 / 6.0
"""Of the busy rate, between bursts of completions."""
_CALM_S: Final = 90.0
_BUSY_S: Final = 20.0
"""Mean lengths: a burst is over before a replica that it asks for has started."""
_NUM_SHAPES: Final = 500

_Make = Callable[[Sequence[Arrival], float, PerformanceCurve], LoadProfile]


def _of_rate(
    name: str,
    rate_of: Callable[[float], Callable[[float], float]],
    duration_s: float,
    grows_s: float | None = None,
) -> _Make:
    def make(trace: Sequence[Arrival], rate: float, _: PerformanceCurve) -> LoadProfile:
        shapes = [arrival.shape for arrival in trace]
        stream = Stream(rate=rate_of(rate), shapes=shapes)
        return LoadProfile(
            name=name,
            duration_s=duration_s,
            streams=(stream,),
            grows_s=grows_s,
            stays_s=duration_s / 3,
        )

    return make


def _long_prompts(trace: Sequence[Arrival], rate: float, curve: PerformanceCurve) -> LoadProfile:
    shapes = [arrival.shape for arrival in trace]
    long_rate = _LONG_SHARE * rate / curve.work(_LONG)
    streams = (
        Stream(rate=constant(_BASE * rate), shapes=shapes),
        Stream(
            rate=within(constant(long_rate), _HALF_HOUR_S / 3, _HALF_HOUR_S * 2 / 3),
            shapes=(_LONG,),
        ),
    )
    return LoadProfile(
        name="long-prompts",
        duration_s=_HALF_HOUR_S,
        streams=streams,
        grows_s=_HALF_HOUR_S / 3,
        stays_s=_HALF_HOUR_S / 3,
    )


def _trace(trace: Sequence[Arrival], rate: float, _: PerformanceCurve) -> LoadProfile:
    stream = Stream(rate=trace_rate(trace, rate), shapes=[each.shape for each in trace])
    return LoadProfile(name="trace", duration_s=_HOUR_S, streams=(stream,))


def _day(trace: Sequence[Arrival], rate: float, _: PerformanceCurve) -> LoadProfile:
    stream = Stream(rate=day(trace_rate(trace, rate)), shapes=[each.shape for each in trace])
    return LoadProfile(name="day", duration_s=_DAY_S, streams=(stream,))


def _code(trace: Sequence[Arrival], rate: float, curve: PerformanceCurve) -> LoadProfile:  # noqa: ARG001
    """Make bursts of two classes of prompts with short answers, as editors send them.

    A Markov chain switches between calm and busy; both classes follow it. It is the same with each
    seed, as a trace is.
    """
    rng = Random("code")  # noqa: S311  # load, not secrets
    short = [Shape(rng.randint(200, 3000), rng.randint(5, 60)) for _ in range(_NUM_SHAPES)]
    long = [Shape(rng.randint(4000, 8000), rng.randint(5, 60)) for _ in range(_NUM_SHAPES)]
    share = markov_modulated(rng, _HOUR_S, calm_s=_CALM_S, busy_s=_BUSY_S, calm=_CALM)
    streams = [Stream(rate=share, shapes=short), Stream(rate=share, shapes=long)]
    works = [curve.work(stream.mean_shape) for stream in streams]
    # The long ones are a fifth of the requests.
    requests = rate / (0.8 * works[0] + 0.2 * works[1])
    return LoadProfile(
        name="code",
        duration_s=_HOUR_S,
        streams=[
            replace(stream, rate=_times(part * requests, share))
            for part, stream in zip((0.8, 0.2), streams, strict=True)
        ],
    )


def _times(factor: float, rate: Callable[[float], float]) -> Callable[[float], float]:
    return lambda now: factor * rate(now)


LOADS: Final[Mapping[str, _Make]] = MappingProxyType({
    "step": _of_rate("step", step, _HALF_HOUR_S, _HALF_HOUR_S / 3),
    "ramp": _of_rate("ramp", ramp, _HALF_HOUR_S),
    "burst": _of_rate("burst", bursts, _HALF_HOUR_S),
    "sine": _of_rate("sine", sine, _HOUR_S),
    "long-prompts": _long_prompts,
    "code": _code,
    "idle": _of_rate("idle", lambda _: constant(_IDLE_RATE), _HOUR_S),
    "trace": _trace,
    "day": _day,
})  # fmt: skip


def make_load(
    name: str, trace: Sequence[Arrival], curve: PerformanceCurve, replicas: int
) -> LoadProfile:
    """Make the load whose busiest moments need about `replicas` replicas.

    Raises:
        WrongUsage: there is none of that name.
    """
    check_load(name)
    return LOADS[name](trace, curve.capacity * replicas, curve)


def check_load(name: str) -> None:
    """Raise for a name that no load has.

    Raises:
        WrongUsage: there is none of that name.
    """
    if name not in LOADS:
        raise WrongUsage(f"--load is '{name}'; it must be one of {', '.join(LOADS)}.")


def tick_s(load: LoadProfile) -> float:
    """Return the length of a flow's steps: shorter than an answer takes."""
    return _LONG_TICK_S if load.duration_s > _HOUR_S else _TICK_S
