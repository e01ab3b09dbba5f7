"""Faults of one rank of many: which rank is blamed, and after how long, beside busy processes.

Each run has a replica of its own under load. A rank, another one each time, is stopped (SIGSTOP) or
hangs without using a CPU. Then the same shapes run as long without a fault: any rank that is blamed
there is a false alarm.
"""

import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.parallel import faulty_replica
from benchmarks.parallel.faulty_replica import FAULTS, Case, Ended
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import write_figures
from tandem_engine.parallel.plan import ParallelShape
from tools.steadiness.disturbance import busy_processes

SHAPES: Final = {
    "tp2": ParallelShape(tp=2),
    "tp2-pp2": ParallelShape(tp=2, pp=2),
    "dp2-pp2": ParallelShape(dp=2, pp=2),
    "tp2-dp2-pp2": ParallelShape(tp=2, dp=2, pp=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    model: Path
    shapes: tuple[str, ...]
    runs: int
    busy: int
    silence_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Runs of one shape."""

    shape: str
    runs: int
    num_right: int
    """Runs with a fault in which the rank was named that had it."""
    found_s: tuple[float, ...]
    """Times from the fault to the end of the replica."""
    num_false: int
    """Ranks that were blamed without a fault."""
    healthy_s: float
    """Time under load without one."""


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show, write."""
    console = Console()
    with busy_processes(settings.busy):
        figures = [_figures(name, settings, console) for name in settings.shapes]
    console.print(_table(figures, settings))
    if out is not None:
        write_figures(out, settings=asdict(settings), faults=[asdict(each) for each in figures])


def _figures(name: str, settings: Settings, console: Console) -> Figures:
    shape = SHAPES[name]
    healthy = Case(model=settings.model, shape=shape, silence_s=settings.silence_s)
    found_s, num_right = [], 0
    for number in range(settings.runs):
        rank = 1 + number % (shape.world_size - 1)
        fault = FAULTS[number // (shape.world_size - 1) % len(FAULTS)]
        ended = _run(replace(healthy, fault=fault, rank=rank))
        num_right += ended.blamed == rank
        found_s.append(ended.seconds)
        console.print(
            f"{name}: rank {rank} {fault}; after {ended.seconds:.1f} s: {ended.cause}",
            highlight=False,
            soft_wrap=True,
        )
    false, healthy_s = _false_alarms(settings, healthy)
    return Figures(
        shape=name,
        runs=settings.runs,
        num_right=num_right,
        found_s=tuple(found_s),
        num_false=len(false),
        healthy_s=healthy_s,
    )


def _false_alarms(settings: Settings, healthy: Case) -> tuple[list[str], float]:
    """Causes that replicas without a fault ended with, and the time that they were under load."""
    causes, left, healthy_s = [], settings.runs * (settings.silence_s + 3.0), 0.0
    while healthy_s < left:
        ended = _run(replace(healthy, seconds=left - healthy_s))
        healthy_s += ended.seconds
        if ended.cause:
            causes.append(ended.cause)
    return causes, healthy_s


def _run(case: Case) -> Ended:
    """Run a case in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=faulty_replica.main, args=(case, sender))
    process.start()
    sender.close()
    try:
        ended: Ended = receiver.recv()
    except EOFError:
        raise BenchmarkError(f"A replica of {case.shape} ended without a word.") from None
    finally:
        process.join()
    return ended


def _table(figures: Sequence[Figures], settings: Settings) -> Table:
    table = Table(
        title=f"Faults of a rank: longest silence {settings.silence_s:g} s, beside "
        f"{settings.busy} busy processes"
    )
    for column in ("shape", "ranks", "right rank", "found after: least", "median", "most"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    table.add_column("false alarms", justify="right")
    for each in figures:
        times = (min(each.found_s), median(each.found_s), max(each.found_s))
        table.add_row(
            each.shape,
            f"{SHAPES[each.shape].world_size}",
            f"{each.num_right} of {each.runs}",
            *(f"{seconds:.1f} s" for seconds in times),
            f"{each.num_false} in {each.healthy_s:.0f} s",
        )
    return table
