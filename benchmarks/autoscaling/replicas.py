"""Makes replicas: with the real scheduler, or as flows by a curve measured on it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.scheduling.policies import Policy, with_slo
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.async_engine.capacity_question import Measure
from tandem_engine.simulate.fluid_replicas import FluidReplicas
from tandem_engine.simulate.machines import Machine, Noise, NoisyMachine
from tandem_engine.simulate.performance_curve import LoadPoint, PerformanceCurve, calibrate
from tandem_engine.simulate.replica import Replica
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.workload import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReplicas:
    """Makes replicas with the real scheduler, each with a noise of its own.

    Args:
        policy: How they schedule.
        machine: Their machine.
        noise: Its variation.
        rng: Decides it.
        measure: Measures their capacity; None: they compute it.
    """

    policy: Policy
    machine: Machine
    noise: Noise
    rng: Random
    measure: Measure | None = None

    def replica(self) -> SchedulerReplica:
        """Make one."""
        rng = Random(self.rng.random())  # noqa: S311  # load, not secrets
        return SchedulerReplica(
            self.policy.schedule,
            self.policy.slo,
            NoisyMachine(self.machine, self.noise, rng),
            num_blocks=self.machine.num_blocks,
            measure=self.measure,
        )

    def __call__(self, count: int, now: float) -> Sequence[Replica]:
        """Make `count`, whose time begins at `now`."""
        made = [self.replica() for _ in range(count)]
        for replica in made:
            replica.advance(now)
        return made


def make_flows(curve: PerformanceCurve, count: int, now: float) -> Sequence[Replica]:
    """Make `count` replicas as flows, in one object."""
    return [FluidReplicas(curve, count, now)]


def measure_curve(
    machine: Machine,
    targets: LatencyTargets,
    shapes: Sequence[Shape],
    *,
    seed: int,
    num_requests: int,
) -> PerformanceCurve:
    """Measure the curve of a replica with these targets."""
    rng = Random(seed)  # noqa: S311  # load, not secrets
    make = SchedulerReplicas(policy=with_slo(targets), machine=machine, noise=Noise(), rng=rng)
    return calibrate(
        make.replica,
        shapes,
        machine,
        rng,
        ttft_s=(targets.ttft_ms or 0.0) / 1e3,
        tpot_s=(targets.tpot_ms or 0.0) / 1e3,
        num_requests=num_requests,
    )


def save_curve(curve: PerformanceCurve, facts: Mapping[str, Any], file: Path) -> None:
    """Write a curve, and the settings it was measured with.

    Raises:
        BenchmarkError: the file cannot be written.
    """
    text = json.dumps({"facts": dict(facts), "curve": asdict(curve)}, indent=1)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{file} cannot be written: {error.strerror}.") from None


def load_curve(file: Path, facts: Mapping[str, Any]) -> PerformanceCurve:
    """Read a curve.

    Raises:
        BenchmarkError: the file cannot be read, or was measured with other settings.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        curve = document["curve"]
        read = PerformanceCurve(
            **curve
            | {
                "points": [
                    LoadPoint(**point | {"latencies": [tuple(each) for each in point["latencies"]]})
                    for point in curve["points"]
                ],
                "mean_shape": Shape(**curve["mean_shape"]),
                "machine": Machine(**curve["machine"]),
            }
        )
    except OSError as error:
        raise BenchmarkError(f"The curve {file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise BenchmarkError(f"{file} is not a curve; make it with `curve --out`.") from None
    if document["facts"] != dict(facts):
        raise BenchmarkError(
            f"The curve {file} was measured with {document['facts']}, not with {dict(facts)}; "
            "measure another with `curve --out`."
        )
    return read
