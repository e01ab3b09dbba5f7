"""The loads by name, scaled to a fleet."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.load_profile import (
    LoadProfile,
    Stream,
    bursts,
    constant,
    day,
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


LOADS: Final[Mapping[str, _Make]] = MappingProxyType({
    "step": _of_rate("step", step, _HALF_HOUR_S, _HALF_HOUR_S / 3),
    "ramp": _of_rate("ramp", ramp, _HALF_HOUR_S),
    "burst": _of_rate("burst", bursts, _HALF_HOUR_S),
    "sine": _of_rate("sine", sine, _HOUR_S),
    "long-prompts": _long_prompts,
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
