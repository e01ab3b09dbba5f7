"""Ranks of tp with one thread each, beside one rank with as many threads, in turns.

Both sides are open all the time and asleep while the other one computes; every other round has
them in the opposite order. A figure is the median of the rounds' ratios, so that load which comes
and goes meets both.
"""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.parallel import tp_side
from benchmarks.parallel.tp_figures import MEMORY_GOAL, RankBytes, Ratios
from benchmarks.parallel.tp_plot import save_plot
from benchmarks.parallel.tp_side import (
    AskMicroBatches,
    Load,
    MeasureMemory,
    MicroBatches,
    Opened,
    RankMemory,
    Side,
    Timed,
)
from benchmarks.peers.models import cache_folder, ensure_model
from benchmarks.peers.shapes import find_shape
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import write_figures
from tandem_engine.api.config import Quantization
from tandem_engine.api.micro_batch_stats import MicroBatchStats

LOADS: Final = (
    Load(name="prefill 1 x 512", num_rows=1, num_tokens=512),
    Load(name="prefill 4 x 512", num_rows=4, num_tokens=512),
    Load(name="decode 16 rows", num_rows=16, num_tokens=256, num_decodes=16),
    Load(name="decode 1 row", num_rows=1, num_tokens=256, num_decodes=32),
)
GOALS: Final = (0.95, 0.95, 0.95, 0.9)
_WIDTH: Final = 132
_Answer = TypeVar("_Answer", Opened, Timed, list[RankMemory], MicroBatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    model: str
    models: Path | None
    tp: int
    rounds: int
    loads: tuple[str, ...]
    """Beginnings of names; none: all."""
    quantization: Quantization
    pin: bool = True
    """See `Side.pin`."""


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show, write."""
    shape = find_shape(settings.model)
    path = ensure_model(shape, settings.models or cache_folder() / "models")
    load = os.getloadavg()[0]
    sides = _sides(settings, str(path))
    with ExitStack() as stack:
        one_rank, several = (stack.enter_context(SideProcess.opened(side)) for side in sides)
        figures = [
            _ratios(name, goal, one_rank, several, settings.rounds)
            for name, goal in zip(LOADS, GOALS, strict=True)
            if not settings.loads or name.name.startswith(settings.loads)
        ]
        memory = _memory(several, settings.tp)
    console = Console(width=max(Console().width, _WIDTH))
    console.print(_table(figures, settings), soft_wrap=True)
    console.print(_memory_table(memory), soft_wrap=True)
    console.print(f"Load average at the start: {load:.1f}", highlight=False)
    if out is not None:
        write_figures(
            out,
            load_average=load,
            settings=asdict(settings),
            speed=[{**asdict(row), "ratio": row.ratio, "is_met": row.is_met} for row in figures],
            memory=[{**asdict(row), "own": row.own, "private": row.private} for row in memory],
        )
        plot = out.with_suffix(".png")
        save_plot(figures, memory, plot, title=_title(settings))
        console.print(f"Wrote {out} and {plot}", highlight=False)


def _sides(settings: Settings, path: str) -> tuple[Side, Side]:
    num_blocks = max(load.num_blocks for load in LOADS)

    def side(tp: int, num_threads: int) -> Side:
        return Side(
            model_path=path,
            tp=tp,
            num_threads=num_threads,
            num_blocks=num_blocks,
            quantization=settings.quantization,
            pin=settings.pin,
        )

    return side(1, settings.tp), side(settings.tp, 1)


def _ratios(
    load: Load, goal: float, one_rank: "SideProcess", several: "SideProcess", rounds: int
) -> Ratios:
    """Both sides in turns; a first round warms them up."""
    times: dict[SideProcess, list[float]] = {one_rank: [], several: []}
    steps: dict[SideProcess, list[float]] = {one_rank: [], several: []}
    for number in range(rounds + 1):
        for side in (one_rank, several) if number % 2 else (several, one_rank):
            seconds = side.time(load)
            if number:
                times[side].append(median(seconds))
                steps[side] += seconds
    return Ratios(
        load=load.name,
        goal=goal,
        one_rank_ms=median(times[one_rank]) * 1e3,
        ranks_ms=median(times[several]) * 1e3,
        ratios=tuple(a / b for a, b in zip(times[one_rank], times[several], strict=True)),
        quiet_ratio=_fastest(steps[one_rank]) / _fastest(steps[several]),
    )


def _fastest(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 10]


def _memory(side: "SideProcess", tp: int) -> list[RankBytes]:
    share = (side.report.weight_bytes + side.report.kv_bytes) // tp
    return [
        RankBytes(rank=rank.rank, held=rank.held, share=share, base=side.report.base_bytes)
        for rank in side.memory()
    ]


class SideProcess:
    """A side, seen from here."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.report = self._receive(Opened)

    @classmethod
    @contextmanager
    def opened(cls, side: Side) -> Iterator["SideProcess"]:
        """Start a process, and end it."""
        context = multiprocessing.get_context("spawn")
        own, other = context.Pipe()
        # Not a daemon: those have no children, and it starts ranks.
        process = context.Process(target=tp_side.main, args=(side, other))
        process.start()
        other.close()
        try:
            yield cls(own)
        finally:
            own.close()
            process.join()

    def time(self, load: Load) -> Sequence[float]:
        """Seconds of each step."""
        self._connection.send(load)
        return self._receive(Timed).seconds

    def memory(self) -> list[RankMemory]:
        """Bytes that each rank holds."""
        self._connection.send(MeasureMemory())
        ranks: list[RankMemory] = self._receive(list)
        return ranks

    def micro_batches(self) -> MicroBatchStats | None:
        """What micro-batches have done; None: they are off."""
        self._connection.send(AskMicroBatches())
        return self._receive(MicroBatches).stats

    def _receive(self, kind: type[_Answer]) -> _Answer:
        try:
            received = self._connection.recv()
        except EOFError:
            raise BenchmarkError("A side ended before all was measured; see above.") from None
        assert isinstance(received, kind), received  # noqa: S101
        return received


def _title(settings: Settings) -> str:
    return (
        f"Model {settings.model}: tp {settings.tp} with a thread a rank, beside one rank "
        f"with {settings.tp} threads"
    )


def _table(figures: Sequence[Ratios], settings: Settings) -> Table:
    table = Table(title=_title(settings))
    table.add_column("steps")
    for name in (
        "one rank, ms",
        f"tp {settings.tp}, ms",
        "ratio",
        "quarters",
        "quiet",
        "goal",
        "met",
    ):
        table.add_column(name, justify="right")
    for row in figures:
        low, high = row.quarters
        table.add_row(
            row.load,
            f"{row.one_rank_ms:.2f}",
            f"{row.ranks_ms:.2f}",
            f"{row.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{row.quiet_ratio:.3f}",
            f"{row.goal:.2f}",
            _met(row.is_met),
        )
    return table


def _memory_table(memory: Sequence[RankBytes]) -> Table:
    table = Table(title="Memory of each rank, MB")
    table.add_column("rank", justify="right")
    for name in (
        "share of weights and KV",
        "own",
        "beside the share",
        "private beside it",
        "goal",
        "met",
        "Python and torch",
        "files",
        "peak",
    ):
        table.add_column(name, justify="right")
    for row in memory:
        before = (row.share, row.own, row.beside, row.private, MEMORY_GOAL)
        behind = (row.base, row.held["RssFile"], row.held["VmHWM"])
        table.add_row(str(row.rank), *map(_in_mb, before), _met(row.is_met), *map(_in_mb, behind))
    return table


def _in_mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f}"


def _met(is_met: bool) -> str:  # its one argument
    return "yes" if is_met else "no"
