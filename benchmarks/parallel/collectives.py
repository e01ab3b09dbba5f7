"""All-reduces among ranks of this host: times, and the share of the memory's bandwidth.

The arithmetic: an all-reduce of B bytes among n ranks reads each rank's tensor once and writes it
once, 2 * n * B bytes. The bandwidth that this is compared with is that of n ranks which copy memory
at the same time, counted alike: bytes read and bytes written. What goes through the slots beside
that is the algorithm's own expense.
"""

import multiprocessing
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.parallel import collective_rank
from benchmarks.parallel.collective_rank import COPIED_BYTES, Case, Measured
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import write_figures
from tandem_engine.api.errors import EngineError
from tandem_engine.parallel.shared_memory import make_segment
from tandem_engine.parallel.world import WorldShape

SIZES: Final = tuple(1 << power for power in (10, 12, 13, 14, 16, 18, 20, 22, 24))
_WIDTH: Final = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure; see the command line."""

    ranks: int
    sizes: tuple[int, ...]
    seconds: float
    pin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One way at one size."""

    way: str
    size: int
    calls: int
    median_us: float
    fastest_tenth_us: float
    """The slowest of the fastest tenth of the calls: those that nothing else disturbed."""
    gb_per_s: float
    """2 * ranks * size over the median."""
    share_of_copy: float
    """`gb_per_s` over the median of copies beside it."""


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show, write."""
    copies, figures = [], []
    for measured in _measured(settings):
        if measured.size == 0:
            copies.append(_rate(settings.ranks, COPIED_BYTES, median(measured.seconds)))
        else:
            figures.append(_figures(measured, settings.ranks, copies[-1]))
    console = Console(width=max(Console().width, _WIDTH))
    console.print(
        f"{settings.ranks} ranks copy {median(copies):.1f} GB/s of memory together, bytes read and "
        "written.",
        highlight=False,
    )
    console.print(_table(figures), soft_wrap=True)
    if out is not None:
        write_figures(
            out,
            settings=asdict(settings),
            copy_gb_per_s=copies,
            all_reduce=[asdict(row) for row in figures],
        )


def _measured(settings: Settings) -> Iterator[Measured]:
    try:
        segment = make_segment(WorldShape(settings.ranks))
    except EngineError as error:
        raise BenchmarkError(str(error)) from error
    with segment:
        case = Case(
            ranks=settings.ranks,
            sizes=settings.sizes,
            seconds=settings.seconds,
            pin=settings.pin,
            segment=segment.address,
        )
        yield from _run(case)


def _run(case: Case) -> Iterator[Measured]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    processes: list[BaseProcess] = [
        context.Process(target=collective_rank.main, args=(case, rank, sender))
        for rank in range(case.ranks)
    ]
    for process in processes:
        process.start()
    sender.close()
    try:
        yield from _received(receiver)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(receiver: Connection) -> Iterator[Measured]:
    """Results of rank 0; all ranks hold the sender, so it ends when the last of them has."""
    while True:
        try:
            measured = receiver.recv()
        except EOFError:
            raise BenchmarkError("The ranks ended before all was measured; see above.") from None
        if measured is None:
            return
        yield measured


def _rate(ranks: int, size: int, seconds: float) -> float:
    return 2 * ranks * size / seconds / 1e9


def _figures(measured: Measured, ranks: int, copy_rate: float) -> Figures:
    middle = median(measured.seconds)
    rate = _rate(ranks, measured.size, middle)
    return Figures(
        way=measured.way,
        size=measured.size,
        calls=len(measured.seconds),
        median_us=middle * 1e6,
        fastest_tenth_us=quantiles(measured.seconds, n=10)[0] * 1e6,
        gb_per_s=rate,
        share_of_copy=rate / copy_rate,
    )


def _table(figures: list[Figures]) -> Table:
    table = Table(title="All-reduce of bfloat16")
    table.add_column("bytes", justify="right")
    table.add_column("through")
    for name in ("median µs", "fastest tenth µs", "GB/s", "% of copying", "calls"):
        table.add_column(name, justify="right")
    for row in figures:
        table.add_row(
            f"{row.size:,}",
            row.way,
            f"{row.median_us:,.1f}",
            f"{row.fastest_tenth_us:,.1f}",
            f"{row.gb_per_s:.2f}",
            f"{100 * row.share_of_copy:.0f}",
            f"{row.calls}",
        )
    return table
