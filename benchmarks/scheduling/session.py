"""One benchmark from its settings to its files: read the trace, measure, show, write."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.scheduling.comparison import (
    PolicyComparison,
    PolicyResult,
    find_capacities,
    group_by_load,
    tasks_for,
)
from benchmarks.scheduling.cost import (
    SETTINGS,
    SIZES,
    MemoryCost,
    StepCost,
    measure_memory,
    measure_step,
)
from benchmarks.scheduling.machines import find_machine
from benchmarks.scheduling.plot import save_comparisons, save_costs, save_trials
from benchmarks.scheduling.report import (
    comparison_document,
    comparison_table,
    cost_table,
    memory_table,
    trial_table,
)
from benchmarks.scheduling.trial import verdict
from benchmarks.scheduling.workload import window, with_poisson_arrivals
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.result import (
    begin,
    result_console,
    status_line,
    title_of,
    write_result,
)
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.trace import parse_trace
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.workload import Arrival, Shape, clip

ARRIVALS: Final = ("trace", "poisson", "both")
RANDOM: Final = "random"
_KV_BLOCKS: Final = 256
# Targets of a calibrated run: TPOT under a burst of requests, and what a user may wait for it.
_TPOT_SHARE: Final = 0.6
_TTFT_IN_TPOT: Final = 40.0

Load = tuple[str, Sequence[Arrival]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSettings:
    """Options of `simulate`."""

    trace: Path
    machine: str
    arrivals: str
    targets: Sequence[LatencyTargets]
    chunks: Sequence[int]
    num_requests: int
    first: int
    noise: float
    outliers: float
    precision: float
    seed: int
    num_processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Options of `engine`."""

    trace: Path
    model: str
    targets: LatencyTargets | None
    chunks: Sequence[int]
    shrink: float
    num_requests: int
    first: int
    shares: Sequence[float]
    repeats: int
    num_threads: int


def run_simulate(options: SimulateSettings, *, out: Path | None) -> None:
    """Run the comparison under a virtual clock.

    Raises:
        BenchmarkError: the trace cannot be read, or the settings make no sense.
    """
    facts = begin(out)
    machine = find_machine(options.machine)
    tasks = tasks_for(
        _loads(options),
        options.targets,
        machine=options.machine,
        chunks=options.chunks,
        noise=Noise(spread=options.noise, outliers=options.outliers),
        seed=options.seed,
    )
    tasks = [replace(task, precision=options.precision) for task in tasks]
    entries: list[PolicyResult] = []
    with status_line() as note:
        for entry in find_capacities(tasks, num_processes=options.num_processes):
            entries.append(entry)
            rate = f"{entry.run.rate:.2f} req/s" if entry.run else "no load"
            note(f"{len(entries)}/{len(tasks)}  {entry.policy} sustains {rate}")
    comparisons = group_by_load(entries)
    console = result_console()
    for comparison in comparisons:
        console.print(comparison_table(comparison), "")
        console.print(_sentence(comparison), "")
    if out is not None:
        document = {
            **facts,
            "settings": _plain(options),
            "prices": asdict(machine),
            "comparisons": [comparison_document(comparison) for comparison in comparisons],
        }
        write_result(
            out,
            document,
            lambda file: save_comparisons(comparisons, file, title=title_of(facts, "simulate")),
        )


def run_engine(options: EngineSettings, *, out: Path | None) -> None:
    """Run the comparison on a real model.

    Raises:
        BenchmarkError: the trace or the model cannot be read.
    """
    # The rest of this module works without torch.
    from benchmarks.scheduling.engine_run import Bench, calibrate, compare_policies  # noqa: PLC0415

    facts = begin(out)
    with _checkpoint(options.model) as folder, status_line() as note:
        bench = Bench(folder, num_blocks=_KV_BLOCKS, num_threads=options.num_threads)
        trace = _shrunk(_read(options.trace), options.shrink)
        load = window(trace, first=options.first, count=options.num_requests)
        load, _ = clip(load, bench.max_seq_len)
        seen = calibrate(bench, load)
        targets = options.targets or LatencyTargets(
            ttft_ms=round(_TTFT_IN_TPOT * seen.tpot_s * 1e3, 1),
            tpot_ms=round(_TPOT_SHARE * seen.tpot_s * 1e3, 1),
        )
        note(
            f"calibrated: {seen.requests_per_s:.2f} req/s at a TPOT of {seen.tpot_s * 1e3:.1f} ms; "
            f"targets TTFT {targets.ttft_ms:g} ms, TPOT {targets.tpot_ms:g} ms"
        )
        trials = compare_policies(
            bench,
            load,
            targets,
            chunks=options.chunks,
            capacity=seen.requests_per_s,
            shares=options.shares,
            repeats=options.repeats,
            note=lambda trial: note(
                f"repeat {trial.repeat + 1}, load {trial.load_share:g}, {trial.policy}: "
                f"goodput {trial.run.goodput:.2f} req/s"
            ),
        )
    result = verdict(trials)
    console = result_console()
    console.print(trial_table(trials, targets), "")
    console.print(
        "SLO budget over the best static chunk, one ratio a repeat: highest goodput "
        f"{_ratios(result.ratios)}; highest goodput of a sustained load "
        f"{_ratios(result.sustained_ratios)}."
    )
    if out is not None:
        document = {
            **facts,
            "settings": _plain(options),
            "calibration": asdict(seen),
            "targets": asdict(targets),
            "trials": [asdict(trial) for trial in trials],
            "verdict": asdict(result),
        }
        write_result(
            out,
            document,
            lambda file: save_trials(trials, file, title=title_of(facts, options.model)),
        )


def run_cost(*, steps: int, only: str | None, memory: bool, out: Path | None) -> None:
    """Measure what the scheduler costs.

    Raises:
        WrongUsage: no setting has `only` in its name.
    """
    settings = [setting for setting in SETTINGS if only is None or only in setting.name]
    if not settings:
        names = ", ".join(setting.name for setting in SETTINGS)
        raise WrongUsage(f"--setting is '{only}'; it must be a part of one of: {names}.")
    facts = begin(out)
    costs: list[StepCost] = []
    bytes_: list[MemoryCost] = []
    with status_line() as note:
        for setting in settings:
            for num_running, num_waiting in SIZES:
                seen = measure_step(setting, num_running, num_waiting, steps=steps)
                costs.append(seen)
                note(f"{setting.name}, {num_running:,} running: {seen.mean_ms:.3f} ms")
            if memory:
                bytes_.append(measure_memory(setting))
    console = result_console()
    console.print(cost_table(costs), "")
    if bytes_:
        console.print(memory_table(bytes_), "")
    if out is not None:
        document = {
            **facts,
            "steps": [asdict(each) for each in costs],
            "memory": [asdict(each) for each in bytes_],
        }
        write_result(
            out, document, lambda file: save_costs(costs, file, title=title_of(facts, "cost"))
        )


def _loads(options: SimulateSettings) -> list[Load]:
    if options.arrivals not in ARRIVALS:
        raise WrongUsage(
            f"--arrivals is '{options.arrivals}'; it must be one of {', '.join(ARRIVALS)}."
        )
    trace = _read(options.trace)
    loads: list[Load] = []
    if options.arrivals != "poisson":
        loads.append(("trace", window(trace, first=options.first, count=options.num_requests)))
    if options.arrivals != "trace":
        loads.append(
            ("poisson", with_poisson_arrivals(trace, count=options.num_requests, seed=options.seed))
        )
    return loads


def _read(file: Path) -> list[Arrival]:
    try:
        with file.open(encoding="utf-8") as lines:
            return parse_trace(lines)
    except OSError as error:
        raise BenchmarkError(
            f"The trace {file} cannot be read: {error.strerror}; name another with --trace."
        ) from None


def _shrunk(trace: Sequence[Arrival], factor: float) -> list[Arrival]:
    def part(tokens: int) -> int:
        return max(1, round(tokens / factor))

    return [
        Arrival(each.due_s, Shape(part(each.shape.num_input), part(each.shape.num_output)))
        for each in trace
    ]


def _sentence(comparison: PolicyComparison) -> str:
    best = comparison.best_static
    own = [entry for entry in comparison.entries if not entry.is_static]
    ratio = comparison.ratio(own[0]) if own else None
    if best is None or ratio is None:
        return "No static chunk sustains any load."
    return f"The SLO budget has {ratio:.2f} times the goodput of the best one, {best.policy}."


def _ratios(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) or "none"


@contextmanager
def _checkpoint(model: str) -> Iterator[Path]:
    if model != RANDOM:
        folder = Path(model)
        if not (folder / "config.json").is_file():
            raise BenchmarkError(
                f"{folder} is not a checkpoint: it has no config.json; give its folder, or "
                f"{RANDOM}."
            )
        yield folder
        return
    from benchmarks.scheduling.model import make_checkpoint  # noqa: PLC0415  # it brings torch

    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as made:
        make_checkpoint(Path(made))
        yield Path(made)


def _plain(settings: SimulateSettings | EngineSettings) -> dict[str, Any]:
    return asdict(settings)
