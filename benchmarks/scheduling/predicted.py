"""The capacity that a replica predicts of itself, against the highest load that it sustains.

The scheduler serves a share of the highest load under the virtual clock and learns the machine, as
a replica does; then its own model says how much more it could carry.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from benchmarks.scheduling.comparison import Task, find_capacity, replica_for
from benchmarks.scheduling.machines import find_machine
from benchmarks.scheduling.policies import with_slo
from benchmarks.scheduling.workload import at_rate
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.scheduler.latency.capacity import (
    PredictedCapacity,
    ReplicaLimits,
    RequestShape,
    capacity,
)
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.simulator import Simulator
from tandem_engine.simulate.workload import Arrival, clip

SHARES: Final = (0.3, 0.6, 0.9)
"""Shares of the highest load that the replica serves before it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One machine under one pair of targets."""

    machine: str
    targets: LatencyTargets
    sustained: float
    """Requests a second of the highest load that it sustains; 0: none."""
    predicted: Sequence[PredictedCapacity]
    """Its own prediction after each of SHARES."""

    @property
    def ratios(self) -> list[float]:
        """Predicted over sustained load."""
        return [forecast.requests_per_s / self.sustained for forecast in self.predicted]


def tasks_for(
    trace: Sequence[Arrival],
    machines: Iterable[tuple[str, Sequence[LatencyTargets]]],
    *,
    noise: Noise,
    seed: int,
) -> list[Task]:
    """One task for each machine and pair of targets; the load is cut to what fits there."""
    return [
        Task(
            load_name="poisson",
            load=clip(trace, find_machine(machine).max_seq_len)[0],
            machine=machine,
            targets=targets,
            policy=with_slo(targets),
            noise=noise,
            seed=seed,
        )
        for machine, pairs in machines
        for targets in pairs
    ]


def predictions(tasks: Sequence[Task], *, num_processes: int) -> Iterator[Prediction]:
    """Measure and predict each of the tasks, in their order."""
    if num_processes == 1:
        yield from map(predict, tasks)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        yield from pool.map(predict, tasks)


def predict(task: Task) -> Prediction:
    """Seek the highest load of a task, and ask the replica for it at lower ones."""
    run = find_capacity(task).run
    sustained = run.rate if run else 0.0
    return Prediction(
        machine=task.machine,
        targets=task.targets,
        sustained=sustained,
        predicted=[predicted_at(task, share * sustained) for share in SHARES if sustained],
    )


def predicted_at(task: Task, rate: float) -> PredictedCapacity:
    """Return the capacity that a replica predicts after it has served a task's load at `rate`."""
    machine = find_machine(task.machine)
    replica = replica_for(task)
    Simulator(replica).run(at_rate(task.load, rate))
    scheduler = replica.scheduler
    return capacity(
        scheduler.step_prices,
        shape_of(task.load),
        ReplicaLimits.of(task.policy.schedule, machine.num_blocks),
        task.policy.slo,
        pace=scheduler.stats().tpot_pace or 1.0,
    )


def shape_of(load: Sequence[Arrival]) -> RequestShape:
    """Return the mean lengths of a load."""
    shapes = (each.shape for each in load)
    return RequestShape.mean_of([(shape.num_input, 0, shape.num_output) for shape in shapes])


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """Return a row for each machine and pair of targets."""
    table = Table(title="Predicted over highest sustained load")
    for name in ("machine", "TTFT / TPOT", "sustained req/s"):
        table.add_column(name, justify="right")
    for share in SHARES:
        table.add_column(f"asked at {share:.0%}", justify="right")
    table.add_column("bound by")
    for prediction in predictions:
        table.add_row(
            prediction.machine,
            f"{prediction.targets.ttft_ms:g} / {prediction.targets.tpot_ms:g} ms",
            f"{prediction.sustained:.2f}",
            *(f"{ratio:.2f}" for ratio in prediction.ratios),
            *(last.bound_by for last in prediction.predicted[-1:]),
        )
    return table
