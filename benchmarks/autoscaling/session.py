"""One benchmark from its settings to its files: make the loads, run, show, write."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from benchmarks.autoscaling.accuracy import Comparison, compare
from benchmarks.autoscaling.controllers import check_name, controller_names, tuned_names
from benchmarks.autoscaling.fault_report import fault_rows, fault_table
from benchmarks.autoscaling.faults import NONE, check_fault
from benchmarks.autoscaling.loads import check_load
from benchmarks.autoscaling.plot import save_runs
from benchmarks.autoscaling.replicas import load_curve, measure_curve, save_curve
from benchmarks.autoscaling.report import (
    accuracy_table,
    comparison_table,
    run_document,
    run_table,
)
from benchmarks.autoscaling.runs import FleetOptions, FleetRun, Task, run_tasks, targets_of
from benchmarks.autoscaling.summary import summarize
from benchmarks.scheduling.machines import find_machine
from benchmarks.scheduling.policies import with_slo
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.result import (
    begin,
    draw_result,
    result_console,
    status_line,
    title_of,
    write_result,
)
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.trace import parse_trace
from tandem_engine.simulate.machines import Machine
from tandem_engine.simulate.performance_curve import PerformanceCurve
from tandem_engine.simulate.workload import Arrival, clip

Facts = dict[str, Any]

MODELS: Final = ("auto", "scheduler", "flow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """The replicas and their promises."""

    trace: Path
    machine: str
    targets: LatencyTargets
    requests: int
    """Requests of each load by which the curve is measured."""
    seed: int
    curve: Path | None
    """None: it is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Options of `run` and `faults`."""

    replicas: ReplicaSettings
    loads: Sequence[str]
    controllers: Sequence[str]
    """Empty: all."""
    tune: bool
    """Each controller also with every value of its parameter's grid."""
    sizes: Sequence[int]
    """Replicas that the busiest moments of a load need, about."""
    num_seeds: int
    """From the replicas' seed on."""
    num_processes: int
    model: str
    cold_start_s: float
    period_s: float
    window_s: float
    failures_s: Sequence[float]
    room: float
    """Highest number of replicas, as a multiple of a size."""
    hours: float | None
    """Only so much of each load; None: all of it."""
    warm_up: bool = False
    """Each load comes twice, and only the second time counts."""

    def tasks(self) -> list[Task]:
        """Return the runs, those of one load and size together.

        Raises:
            WrongUsage: there is no such model, load or controller.
        """
        if self.model not in MODELS:
            raise WrongUsage(f"--model is '{self.model}'; it must be one of {', '.join(MODELS)}.")
        names = list(self.controllers or controller_names())
        for name in names:
            check_name(name)
        for load in self.loads:
            check_load(load)
        seeds = range(self.replicas.seed, self.replicas.seed + self.num_seeds)
        return [
            Task(load=load, size=size, controller=name, seed=seed)
            for size in self.sizes
            for load in self.loads
            for name in (*names, *self._tuned(names, size))
            for seed in seeds
        ]

    def is_named(self, controller: str) -> bool:
        """Return True for a controller that was asked for, and False for one of a grid."""
        return controller in (self.controllers or controller_names())

    def _tuned(self, names: Sequence[str], size: int) -> list[str]:
        """Return the controllers with each value of their grids, for a fleet of a size."""
        grids = [tuned_names(name, ceil(self.room * size)) for name in names if self.tune]
        return [name for grid in grids for name in grid]


def run_controllers(options: RunSettings, *, out: Path | None) -> None:
    """Run each controller on each load at each size with each seed.

    Raises:
        BenchmarkError: a file cannot be read, or the settings make no sense.
    """

    def document_of(
        facts: Facts, curve: PerformanceCurve, runs: Sequence[FleetRun]
    ) -> dict[str, Any]:
        return {
            **facts,
            "settings": asdict(options),
            "curve": asdict(curve),
            "summaries": [asdict(row) for row in summarize(runs)],
            "runs": [run_document(run, first_seed=options.replicas.seed) for run in runs],
        }

    facts, runs = _measure(options, options.tasks(), document_of, out)
    rows = summarize(runs)
    console = result_console()
    console.print(run_table([row for row in rows if options.is_named(row.controller)]), "")
    if options.tune:
        console.print(comparison_table(rows), "")
    if out is not None:
        title = title_of(facts, "autoscaling")
        draw_result(out, lambda file: save_runs(runs, rows, file, title=title))


def run_faults(options: RunSettings, faults: Sequence[str], *, out: Path | None) -> None:
    """Run the operator's loop on each load at each size with each seed, under each fault.

    Raises:
        BenchmarkError: a file cannot be read, or the settings make no sense.
    """
    for name in faults:
        check_fault(name)
    tasks = [
        replace(task, fault=fault)
        for task in options.tasks()
        for fault in dict.fromkeys((NONE, *faults))
    ]

    def document_of(facts: Facts, _: PerformanceCurve, runs: Sequence[FleetRun]) -> dict[str, Any]:
        rows = [row.document() for row in fault_rows(runs)]
        return {**facts, "settings": asdict(options), "faults": rows}

    _, runs = _measure(options, tasks, document_of, out)
    result_console().print(fault_table(fault_rows(runs)), "")


def _measure(
    options: RunSettings,
    tasks: Sequence[Task],
    document_of: Callable[[Facts, PerformanceCurve, Sequence[FleetRun]], dict[str, Any]],
    out: Path | None,
) -> tuple[Facts, list[FleetRun]]:
    """Return the facts of the machine, and the runs in the tasks' order.

    A run may take an hour, so the document of all that have ended is written after each.
    """
    facts = begin(out)
    trace, machine = _trace_and_machine(options.replicas)
    runs: list[FleetRun] = []
    with status_line() as note:
        curve = _curve(options.replicas, trace, machine, note)
        fleet = FleetOptions(
            trace=trace,
            curve=curve,
            targets=options.replicas.targets,
            model=options.model,
            cold_start_s=options.cold_start_s,
            period_s=options.period_s,
            window_s=options.window_s,
            failures_s=options.failures_s,
            room=options.room,
            hours=options.hours,
            warm_up=options.warm_up,
        )
        for run in run_tasks(fleet, tasks, num_processes=options.num_processes):
            runs.append(run)
            task = run.task
            what = task.fault or task.controller
            note(f"{task.load}, {task.size} replicas, {what}: {run.wall_s:.1f} s")
            if out is not None:
                write_result(out, document_of(facts, curve, runs))
    return facts, runs


def run_curve(settings: ReplicaSettings, *, out: Path) -> None:
    """Measure a replica's curve and write it.

    Raises:
        BenchmarkError: a file cannot be read or written.
    """
    trace, machine = _trace_and_machine(settings)
    with status_line() as note:
        curve = _curve(settings, trace, machine, note)
    save_curve(curve, _curve_facts(settings), out)
    result_console().print(
        f"A replica can take {curve.capacity:.2f} req/s within the targets; overloaded it "
        f"completes {curve.overload_rate:.2f} req/s, {curve.overload_share:.0%} of them in time. "
        f"The curve is in {out}."
    )


def run_accuracy(settings: ReplicaSettings, *, size: int, duration_s: float, only: str) -> None:
    """Compare flows with the real scheduler on a few loads.

    Raises:
        BenchmarkError: a file cannot be read.
    """
    trace, machine = _trace_and_machine(settings)
    comparisons: list[Comparison] = []
    with status_line() as note:
        curve = _curve(settings, trace, machine, note)
        for comparison in compare(
            curve,
            with_slo(settings.targets),
            [arrival.shape for arrival in trace],
            *targets_of(settings.targets),
            size=size,
            duration_s=duration_s,
            seed=settings.seed,
            only=only,
        ):
            comparisons.append(comparison)
            note(comparison.name)
    result_console().print(accuracy_table(comparisons))


def _trace_and_machine(settings: ReplicaSettings) -> tuple[list[Arrival], Machine]:
    machine = find_machine(settings.machine)
    try:
        with settings.trace.open(encoding="utf-8") as lines:
            trace = parse_trace(lines)
    except OSError as error:
        raise BenchmarkError(
            f"The trace {settings.trace} cannot be read: {error.strerror}; "
            "name another with --trace."
        ) from None
    return clip(trace, machine.max_seq_len)[0], machine


def _curve(
    settings: ReplicaSettings,
    trace: Sequence[Arrival],
    machine: Machine,
    note: Callable[[str], None],
) -> PerformanceCurve:
    if settings.curve is not None:
        return load_curve(settings.curve, _curve_facts(settings))
    note("measuring a replica's curve on the real scheduler")
    return measure_curve(
        machine,
        settings.targets,
        [arrival.shape for arrival in trace],
        seed=settings.seed,
        num_requests=settings.requests,
    )


def _curve_facts(settings: ReplicaSettings) -> dict[str, Any]:
    return {"machine": settings.machine, "trace": settings.trace.name} | asdict(settings.targets)
