"""One comparison from its settings to its files: models, turns, roof, tables."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.convert import model_for
from benchmarks.peers.engines import KINDS, TANDEM, TYPES, InstalledEngine, physical_cores
from benchmarks.peers.figures import RowFigures, best_roofline, process_figures, row_figures
from benchmarks.peers.models import ensure_model
from benchmarks.peers.plot import save_plot
from benchmarks.peers.report import (
    document,
    latency_table,
    process_table,
    roofline_sentence,
    row_table,
    sentences,
)
from benchmarks.peers.roofline import Roofline
from benchmarks.peers.rows import PeerRow
from benchmarks.peers.shapes import MAX_POSITIONS, ModelShape
from benchmarks.peers.turns import Settings, Turn, TurnResult, measure_roofline, run_turn, turns
from benchmarks.serving.case import Case
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.result import (
    begin,
    result_console,
    status_line,
    title_of,
    write_result,
)
from benchmarks.serving.session import exit_on_sigterm

Note = Callable[[str], None]
_QUIET: Final = 0.5
"""Load average for each core from which a machine does other work."""
_NOT_GIVEN: Final = "its interpreter was not given with --"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Options of `run`."""

    interpreters: Mapping[str, Path | None]
    """Of the peers, by name; None is not compared."""
    shapes: Sequence[ModelShape]
    types: Sequence[str]
    rows: tuple[PeerRow, ...]
    repeats: int
    row_s: float
    first_s: float
    threads: int | None
    """None: the physical cores."""
    pin: bool
    timeout_s: float
    models: Path
    """Folder of the checkpoints."""

    def __post_init__(self) -> None:
        for row in self.rows:
            _check_row(row)
        for name in self.types:
            if name not in TYPES:
                raise WrongUsage(f"Unknown type '{name}'; it must be one of {', '.join(TYPES)}.")
        for name, python in self.interpreters.items():
            if python is not None and not python.is_file():
                raise WrongUsage(
                    f"--{name} is {python}, which is not a file; name the python of its "
                    "environment, or make one: python -m benchmarks.peers environments."
                )


def _check_row(row: Case) -> None:
    if row.concurrency == 0:
        raise WrongUsage(f"The row {row} has no sequences; write at least 1.")
    if row.shape.num_tokens >= MAX_POSITIONS:
        raise WrongUsage(
            f"A sequence of the row {row} takes {row.shape.num_tokens} tokens; "
            f"the models take {MAX_POSITIONS - 1}."
        )


class _Runs:
    """Results of the turns so far."""

    def __init__(self) -> None:
        self.results: list[TurnResult] = []
        self.roofs: dict[str, list[Roofline]] = {}
        self.reader = ""
        self.settings: dict[str, dict[str, Any]] = {}

    def add(self, result: TurnResult) -> None:
        """Keep a result, and what its engine was set to."""
        self.results.append(result)
        if result.settings:
            kept = {"version": result.version, **result.settings}
            self.settings[f"{result.engine}, {result.model}, {result.weights}"] = kept


def run(options: RunSettings, *, out: Path | None) -> None:
    """Compare the engines.

    Raises:
        BenchmarkError: the models cannot be made, or Tandem itself could not be measured.
    """
    facts = begin(out)
    cores = cores_for(options.threads)
    settings = Settings(
        rows=options.rows,
        repeats=options.repeats,
        row_s=options.row_s,
        first_s=options.first_s,
        timeout_s=options.timeout_s,
        cores=cores,
        pin=options.pin,
    )
    engines = installed_engines(options.interpreters)
    # Engines of several processes must not outlive a run that is ended from outside.
    with exit_on_sigterm(), _logs(out) as logs, status_line() as note:
        checkpoints = {
            shape.name: ensure_model(shape, options.models, progress=_making(note, shape))
            for shape in options.shapes
        }
        runs = _run_turns(options, engines, checkpoints, settings, logs=logs, note=note)
    names = [engine.kind.name for engine in engines]
    figures = _figures(options, runs, names)
    processes = process_figures(runs.results)
    missing = _missing(options.interpreters)
    console = result_console()
    for table in (row_table(figures, names), latency_table(figures), process_table(processes)):
        console.print(table, "")
    for model, roofs in runs.roofs.items():
        roof = best_roofline(roofs)
        if roof is not None:
            console.print(roofline_sentence(model, roof, runs.reader))
    for sentence in [*sentences(processes, missing), *warnings_of(facts["machine"])]:
        console.print(sentence, markup=False)
    if out is not None:
        content = document(
            figures,
            processes,
            facts=facts,
            settings=_settings_document(options, cores),
            roofs=runs.roofs,
            engine_settings=runs.settings,
            missing=missing,
        )
        title = title_of(facts, "Tandem beside its peers")
        write_result(out, content, lambda file: save_plot(figures, file, title=title))
    _check_tandem(runs.results)


def installed_engines(interpreters: Mapping[str, Path | None]) -> list[InstalledEngine]:
    """Tandem under this interpreter, and the peers whose interpreters are given."""
    own = InstalledEngine(kind=KINDS[TANDEM], python=Path(sys.executable))
    # Not resolved: a virtual environment's python is a link, and the link is what names it.
    peers = [
        InstalledEngine(kind=KINDS[name], python=python.absolute())
        for name, python in interpreters.items()
        if python is not None
    ]
    return [own, *peers]


def cores_for(threads: int | None) -> tuple[int, ...]:
    """The logical CPUs of a run, one a thread.

    Raises:
        WrongUsage: there are not so many physical cores.
    """
    cores = physical_cores()
    if threads is not None and threads > len(cores):
        raise WrongUsage(
            f"--threads is {threads}; this process may use {len(cores)} physical cores."
        )
    return tuple(cores[:threads])


def warnings_of(machine: Mapping[str, Any]) -> list[str]:
    """A warning where other work ran when the comparison began.

    Args:
        machine: Facts from `machine_facts`.
    """
    load, num_cores = machine["load_average_1min"], machine["num_cores"]
    if load < _QUIET * num_cores:
        return []
    sentence = (
        f"The load average was {load:g} on {num_cores} cores before the run: other work had a part "
        "of the machine, and limits, ratios and shares mean little."
    )
    return [sentence]


def _run_turns(
    options: RunSettings,
    engines: Sequence[InstalledEngine],
    checkpoints: Mapping[str, Path],
    settings: Settings,
    *,
    logs: Path,
    note: Note,
) -> _Runs:
    runs = _Runs()
    shapes = {shape.name: shape for shape in options.shapes}
    order = list(turns(engines, list(shapes), options.types, repeats=options.repeats))
    for number, turn in enumerate(order, start=1):

        def say(text: str, number: int = number) -> None:
            note(f"{number}/{len(order)}  {text}")

        shape = shapes[turn.model]
        if len(runs.roofs.get(turn.model, ())) <= turn.repeat:
            say(f"roofline of {turn.model}")
            _add_roofline(runs, shape, settings, options.types, logs / "roofline.log")
        runs.add(_turn(turn, shape, checkpoints[turn.model], settings, logs=logs, note=say))
    return runs


def _turn(
    turn: Turn, shape: ModelShape, checkpoint: Path, settings: Settings, *, logs: Path, note: Note
) -> TurnResult:
    log = logs / f"{turn.engine.kind.name}.log"
    try:
        file = model_for(turn.engine, checkpoint, turn.weights, log=log)
    except BenchmarkError as error:
        return TurnResult(
            engine=turn.engine.kind.name,
            model=turn.model,
            weights=turn.weights,
            repeat=turn.repeat,
            settings={},
            error=str(error),
        )
    return run_turn(turn, shape, file, settings, log=log, note=note)


def _add_roofline(
    runs: _Runs, shape: ModelShape, settings: Settings, types: Sequence[str], log: Path
) -> None:
    roof, runs.reader = measure_roofline(
        Path(sys.executable), shape, settings, with_w8a8="w8a8" in types, log=log
    )
    runs.roofs.setdefault(shape.name, []).append(roof)


def _figures(options: RunSettings, runs: _Runs, names: Sequence[str]) -> list[RowFigures]:
    return [
        row
        for shape in options.shapes
        for weights in options.types
        for row in row_figures(
            runs.results,
            shape,
            options.rows,
            weights=weights,
            engines=names,
            roof=best_roofline(runs.roofs.get(shape.name, [])),
        )
    ]


def _missing(interpreters: Mapping[str, Path | None]) -> dict[str, str]:
    return {name: f"{_NOT_GIVEN}{name}." for name, python in interpreters.items() if python is None}


def _settings_document(options: RunSettings, cores: Sequence[int]) -> dict[str, Any]:
    return {
        "rows": [str(row) for row in options.rows],
        "types": list(options.types),
        "models": [shape.config() | {"name": shape.name} for shape in options.shapes],
        "repeats": options.repeats,
        "row_s": options.row_s,
        "first_s": options.first_s,
        "cores": list(cores),
        "pin": options.pin,
    }


def _making(note: Note, shape: ModelShape) -> Note:
    return lambda tensor: note(f"making {shape.name}: {tensor}") if "embed" in tensor else None


def _check_tandem(results: Sequence[TurnResult]) -> None:
    """Raise BenchmarkError when Tandem was not measured; peers may be missing."""
    own = [result for result in results if result.engine == TANDEM]
    if any(result.samples for result in own):
        return
    errors = [result.error for result in own if result.error]
    raise BenchmarkError(errors[0] if errors else "Tandem was not measured.")


@contextmanager
def _logs(out: Path | None) -> Iterator[Path]:
    """Folder of the engines' logs: beside the result, or for the time of the run."""
    if out is not None:
        folder = out / "logs"
        folder.mkdir(exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as made:
        yield Path(made)
