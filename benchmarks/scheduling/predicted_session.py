"""The benchmark of predicted capacity from its settings to its file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.scheduling.policies import parse_targets
from benchmarks.scheduling.predicted import (
    SHARES,
    Prediction,
    prediction_table,
    predictions,
    tasks_for,
)
from benchmarks.scheduling.workload import with_poisson_arrivals
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import begin, result_console, status_line, write_result
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.trace import parse_trace
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.workload import Arrival

PAIRS: Final = {
    "npu": ("6000/45", "1500/80"),
    "gpu": ("500/30", "1500/80"),
    "cpu": ("800/40", "3000/80"),
}
"""Targets of each machine: one that the steps bound, one that the queue does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings:
    """Options of `predict`."""

    trace: Path
    machines: Sequence[str]
    """None given: all of PAIRS."""
    targets: Sequence[LatencyTargets]
    """None given: those of PAIRS."""
    num_requests: int
    precision: float
    seed: int
    num_processes: int


def run_predict(options: PredictSettings, *, out: Path | None) -> None:
    """Compare, show and write.

    Raises:
        BenchmarkError: the trace cannot be read, or a machine is not known.
    """
    facts = begin(out)
    tasks = tasks_for(
        with_poisson_arrivals(_read(options.trace), count=options.num_requests, seed=options.seed),
        [
            (name, options.targets or tuple(map(parse_targets, PAIRS.get(name, ()))))
            for name in options.machines or PAIRS
        ],
        noise=Noise(),
        seed=options.seed,
    )
    tasks = [replace(task, precision=options.precision) for task in tasks]
    measured: list[Prediction] = []
    with status_line() as note:
        for prediction in predictions(tasks, num_processes=options.num_processes):
            measured.append(prediction)
            sustained = f"{prediction.machine} sustains {prediction.sustained:.2f} req/s"
            note(f"{len(measured)}/{len(tasks)}  {sustained}")
    result_console().print(prediction_table(measured), "")
    if out is not None:
        document = {
            **facts,
            "settings": asdict(options),
            "shares": SHARES,
            "predictions": [
                {**asdict(prediction), "ratios": prediction.ratios} for prediction in measured
            ],
        }
        write_result(out, document, lambda _: None)


def _read(file: Path) -> list[Arrival]:
    try:
        with file.open(encoding="utf-8") as lines:
            return parse_trace(lines)
    except OSError as error:
        raise BenchmarkError(
            f"The trace {file} cannot be read: {error.strerror}; name another with --trace."
        ) from None
