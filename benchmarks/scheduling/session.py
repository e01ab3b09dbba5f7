"""One benchmark from its settings to its files: read the trace, measure, show, write."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.scheduling.contest import (
    Contest,
    Entry,
    carry_out_all,
    contests_of,
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
from benchmarks.scheduling.machines import Noise, machine_called
from benchmarks.scheduling.plot import save_contests, save_costs, save_trials
from benchmarks.scheduling.report import (
    contest_document,
    contest_table,
    cost_table,
    memory_table,
    trial_table,
)
from benchmarks.scheduling.trial import verdict
from benchmarks.scheduling.workload import by_chance, window
from benchmarks.serving.case import Shape
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.result import (
    begin,
    result_console,
    status_line,
    title_of,
    write_result,
)
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.trace import Arrival, clip, parse_trace

ARRIVALS: Final = ("trace", "poisson", "both")
RANDOM: Final = "random"
_KV_BLOCKS: Final = 256
# Targets of a calibrated run: TPOT under a burst of requests, and what a user may wait for it.
_TPOT_SHARE: Final = 0.6
_TTFT_IN_TPOT: Final = 40.0

Load = tuple[str, Sequence[Arrival]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSettings:
    """What `simulate` was asked for."""

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
    """What `engine` was asked for."""

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


def run_simulate(asked: SimulateSettings, *, out: Path | None) -> None:
    """Carry the contest under a virtual clock out.

    Raises:
        BenchmarkError: the trace cannot be read, or the settings make no sense.
    """
    facts = begin(out)
    machine = machine_called(asked.machine)
    tasks = tasks_for(
        _loads(asked),
        asked.targets,
        machine=asked.machine,
        chunks=asked.chunks,
        noise=Noise(spread=asked.noise, outliers=asked.outliers),
        seed=asked.seed,
    )
    tasks = [replace(task, precision=asked.precision) for task in tasks]
    entries: list[Entry] = []
    with status_line() as note:
        for entry in carry_out_all(tasks, num_processes=asked.num_processes):
            entries.append(entry)
            rate = f"{entry.run.rate:.2f} req/s" if entry.run else "no load"
            note(f"{len(entries)}/{len(tasks)}  {entry.policy} sustains {rate}")
    contests = contests_of(entries)
    console = result_console()
    for contest in contests:
        console.print(contest_table(contest), "")
        console.print(_sentence(contest), "")
    if out is not None:
        document = {
            **facts,
            "settings": _plain(asked),
            "prices": asdict(machine),
            "contests": [contest_document(contest) for contest in contests],
        }
        write_result(
            out,
            document,
            lambda file: save_contests(contests, file, title=title_of(facts, "simulate")),
        )


def run_engine(asked: EngineSettings, *, out: Path | None) -> None:
    """Carry the contest on a real model out.

    Raises:
        BenchmarkError: the trace or the model cannot be read.
    """
    # The rest of this module works without torch.
    from benchmarks.scheduling.engine_run import Bench, calibrate, compete  # noqa: PLC0415

    facts = begin(out)
    with _checkpoint(asked.model) as folder, status_line() as note:
        bench = Bench(folder, num_blocks=_KV_BLOCKS, num_threads=asked.num_threads)
        trace = _shrunk(_read(asked.trace), asked.shrink)
        load = window(trace, first=asked.first, count=asked.num_requests)
        load, _ = clip(load, bench.max_seq_len)
        seen = calibrate(bench, load)
        targets = asked.targets or LatencyTargets(
            ttft_ms=round(_TTFT_IN_TPOT * seen.tpot_s * 1e3, 1),
            tpot_ms=round(_TPOT_SHARE * seen.tpot_s * 1e3, 1),
        )
        note(
            f"calibrated: {seen.requests_per_s:.2f} req/s at a TPOT of {seen.tpot_s * 1e3:.1f} ms; "
            f"targets TTFT {targets.ttft_ms:g} ms, TPOT {targets.tpot_ms:g} ms"
        )
        trials = compete(
            bench,
            load,
            targets,
            chunks=asked.chunks,
            capacity=seen.requests_per_s,
            shares=asked.shares,
            repeats=asked.repeats,
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
            "settings": _plain(asked),
            "calibration": asdict(seen),
            "targets": asdict(targets),
            "trials": [asdict(trial) for trial in trials],
            "verdict": asdict(result),
        }
        write_result(
            out,
            document,
            lambda file: save_trials(trials, file, title=title_of(facts, asked.model)),
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


def _loads(asked: SimulateSettings) -> list[Load]:
    if asked.arrivals not in ARRIVALS:
        raise WrongUsage(
            f"--arrivals is '{asked.arrivals}'; it must be one of {', '.join(ARRIVALS)}."
        )
    trace = _read(asked.trace)
    loads: list[Load] = []
    if asked.arrivals != "poisson":
        loads.append(("trace", window(trace, first=asked.first, count=asked.num_requests)))
    if asked.arrivals != "trace":
        loads.append(("poisson", by_chance(trace, count=asked.num_requests, seed=asked.seed)))
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


def _sentence(contest: Contest) -> str:
    best = contest.best_static
    own = [entry for entry in contest.entries if not entry.is_static]
    ratio = contest.ratio(own[0]) if own else None
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
                f"{folder} is no checkpoint: it has no config.json; give its folder, or {RANDOM}."
            )
        yield folder
        return
    from benchmarks.scheduling.model import make_checkpoint  # noqa: PLC0415  # it brings torch

    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as place:
        make_checkpoint(Path(place))
        yield Path(place)


def _plain(settings: SimulateSettings | EngineSettings) -> dict[str, Any]:
    return asdict(settings)
