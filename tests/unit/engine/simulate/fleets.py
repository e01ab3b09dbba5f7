"""A small machine, replicas and controllers for the tests of fleets."""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.simulate.account import FleetResult
from tandem_engine.simulate.fleet import Fleet, FleetSettings
from tandem_engine.simulate.fluid_replicas import FluidReplicas
from tandem_engine.simulate.machines import Machine, Noise, NoisyMachine
from tandem_engine.simulate.observation import FleetObservation, PredictByShapes, Target
from tandem_engine.simulate.performance_curve import SHARES, LoadPoint, PerformanceCurve
from tandem_engine.simulate.replica import Replica
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.workload import Arrival, Shape

TTFT, TPOT = Target(target_s=1.0), Target(target_s=0.1)
SHAPE = Shape(100, 11)
TICK_S = 0.2

# 10 ms a step, 1 ms a token, 4 ms a row.
PLAIN = Machine(
    base_s=10e-3,
    token_s=1e-3,
    attention_s=0.0,
    cache_s=0.0,
    row_s=4e-3,
    num_blocks=100,
    max_seq_len=4096,
    source="this test",
)

# 1 req/s: 0.3 ongoing, TTFT 0.1 s and ten tokens of 0.02 s; 4 req/s: 4, 0.5 s, 0.05 s.
CURVE = PerformanceCurve(
    points=[
        LoadPoint(rate=1.0, num_ongoing=0.3, kv_usage=0.1, latencies=[(0.1, 0.02)] * len(SHARES)),
        LoadPoint(rate=4.0, num_ongoing=4.0, kv_usage=0.5, latencies=[(0.5, 0.05)] * len(SHARES)),
    ],
    capacity=4.0,
    overload_rate=5.0,
    overload_share=0.8,
    burst_rate=10.0,
    mean_shape=SHAPE,
    work_s=0.155,
    machine=PLAIN,
)


class Follows:
    """A controller that says what it is told, and keeps what it saw."""

    def __init__(self, desired: Callable[[float], int]) -> None:
        self._desired = desired
        self.observations: list[FleetObservation] = []

    def desired(self, observation: FleetObservation, now: float) -> int:
        self.observations.append(observation)
        return self._desired(now)


def scheduler_replica(seed: int = 1, *, noise: Noise | None = None) -> SchedulerReplica:
    return SchedulerReplica(
        ScheduleConfig(
            template_type="Mix",
            enable_prefix_cache=False,
            split_fuse=SplitFuseConfig(split_chunk_tokens=256, split_start_batch_size=0),
        ),
        Slo(ttft=LatencyTarget(target="1s"), tpot=LatencyTarget(target="100ms")),
        NoisyMachine(PLAIN, noise or Noise(), Random(seed)),
        num_blocks=PLAIN.num_blocks,
    )


def schedulers(seed: int) -> Callable[[int, float], Sequence[Replica]]:
    rng = Random(seed)

    def make(count: int, now: float) -> Sequence[Replica]:
        made = [scheduler_replica(rng.randrange(1000)) for _ in range(count)]
        for replica in made:
            replica.advance(now)
        return made

    return make


def flows(count: int, now: float) -> Sequence[Replica]:
    return [FluidReplicas(CURVE, count, now)]


def settings(**changed: object) -> FleetSettings:
    values: dict[str, object] = {"ttft": TTFT, "tpot": TPOT, "max_replicas": 8} | changed
    return FleetSettings(**values)  # type: ignore[arg-type]


def run(
    load: Iterable[tuple[Arrival, float]],
    duration_s: float,
    controller: Follows,
    *,
    make: Callable[[int, float], Sequence[Replica]],
    cold_start_s: float = 20.0,
    fleet: FleetSettings | None = None,
    predict: PredictByShapes | None = None,
) -> FleetResult:
    simulated = Fleet(
        fleet or settings(),
        make,
        controller,
        cold_start_s=lambda: cold_start_s,
        predict=predict,
    )
    return simulated.run(load, duration_s)


def steady(rate: float, duration_s: float, *, shape: Shape = SHAPE) -> list[tuple[Arrival, float]]:
    count = int(rate * duration_s)
    return [(Arrival((number + 0.5) / rate, shape), 1.0) for number in range(count)]


def flow(rate: float, duration_s: float, *, shape: Shape = SHAPE) -> list[tuple[Arrival, float]]:
    count = int(duration_s / TICK_S)
    return [(Arrival((tick + 0.5) * TICK_S, shape), rate * TICK_S) for tick in range(count)]
