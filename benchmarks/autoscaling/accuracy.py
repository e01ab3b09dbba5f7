"""The error of flows: the same loads on replicas with the real scheduler, and as flows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.autoscaling.replicas import SchedulerReplicas, make_flows
from benchmarks.scheduling.policies import Policy
from tandem_engine.simulate.account import FleetResult
from tandem_engine.simulate.fleet import Fleet, FleetSettings, MakeReplicas
from tandem_engine.simulate.load_profile import LoadProfile, Stream, constant, within
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.observation import FleetObservation, Target
from tandem_engine.simulate.performance_curve import PerformanceCurve
from tandem_engine.simulate.workload import Arrival, Shape

_SHARES: Final = (0.3, 0.6, 0.8, 1.0, 1.3)
"""Rates of steady loads, as shares of the capacity."""
_TICK_S: Final = 2.0
_PERIOD_S: Final = 15.0
_COLD_START_S: Final = 30.0
_LONG: Final = Shape(8000, 150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One load on both kinds of replicas."""

    name: str
    scheduler: FleetResult
    flow: FleetResult

    @property
    def attainment_error(self) -> float:
        """Attainment of flows minus that of the scheduler."""
        return self.flow.attainment - self.scheduler.attainment

    def ongoing(self, result: FleetResult) -> float:
        """Return the mean of the requests in process or waiting over the periods."""
        seen = [moment.observation for moment in result.moments]
        return sum(state.num_running + state.num_waiting for state in seen) / max(1, len(seen))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A controller that changes the count once, at a time."""

    before: int
    after: int
    at_s: float

    def desired(self, observation: FleetObservation, now: float) -> int:  # noqa: ARG002
        return self.before if now < self.at_s else self.after


def compare(
    curve: PerformanceCurve,
    policy: Policy,
    shapes: Sequence[Shape],
    ttft: Target,
    tpot: Target,
    *,
    size: int,
    duration_s: float,
    seed: int,
    only: str = "",
) -> Iterator[Comparison]:
    """Run steady loads, a step with more replicas, long prompts and a step down on both kinds.

    Args:
        curve: Of the flows.
        policy: Of the schedulers.
        shapes: From which requests are drawn.
        ttft: Target of the time to the first token.
        tpot: Target of the time of a token after it.
        size: Replicas.
        duration_s: Of each load.
        seed: Decides arrivals and noise.
        only: Only loads whose name contains this.
    """
    for name, streams, plan in _cases(curve, shapes, size, duration_s):
        if only not in name:
            continue
        load = LoadProfile(name=name, duration_s=duration_s, streams=streams)

        def run(
            make: MakeReplicas,
            requests: Iterator[tuple[Arrival, float]],
            plan: _Plan = plan,
        ) -> FleetResult:
            settings = FleetSettings(
                ttft=ttft,
                tpot=tpot,
                max_replicas=2 * size,
                initial_replicas=plan.before,
                period_s=_PERIOD_S,
            )
            fleet = Fleet(settings, make, plan, cold_start_s=lambda: _COLD_START_S)
            return fleet.run(requests, duration_s)

        rng = Random(seed)  # noqa: S311  # load, not secrets
        schedulers = SchedulerReplicas(
            policy=policy,
            machine=curve.machine,
            noise=Noise(),
            rng=Random(seed + 1),  # noqa: S311
        )
        yield Comparison(
            name=name,
            scheduler=run(schedulers, load.requests(rng)),
            flow=run(lambda count, now: make_flows(curve, count, now), load.flows(_TICK_S)),
        )


def _cases(
    curve: PerformanceCurve, shapes: Sequence[Shape], size: int, duration_s: float
) -> Iterator[tuple[str, Sequence[Stream], _Plan]]:
    full = curve.capacity * size
    same = _Plan(size, size, 0.0)

    def stream(rate: Callable[[float], float]) -> Stream:
        return Stream(rate=rate, shapes=shapes)

    for share in _SHARES:
        yield f"steady, {share:.0%} of the capacity", (stream(constant(share * full)),), same
    step = _up(0.5 * full, 1.4 * full, duration_s / 4.0)
    yield (
        "from 50 % to 140 %, then half as many more",
        (stream(step),),
        _Plan(size, size + (size + 1) // 2, duration_s / 4.0 + _PERIOD_S),
    )
    down = _up(0.9 * full, 0.3 * full, duration_s / 4.0)
    yield (
        "from 90 % to 30 %, then half",
        (stream(down),),
        _Plan(size, (size + 1) // 2, duration_s / 2.0),
    )
    long = within(
        constant(0.4 * full / curve.work(_LONG)), duration_s / 3.0, duration_s * 2.0 / 3.0
    )
    yield (
        "35 %, and long prompts of 40 % in the middle",
        (
            stream(constant(0.35 * full)),
            Stream(rate=long, shapes=(_LONG,)),
        ),
        same,
    )


def _up(before: float, after: float, at_s: float) -> Callable[[float], float]:
    return lambda now: before if now < at_s else after
