"""Handing steps to other ranks: the time of each part, and bytes, beside pickle in the same run.

Parts are in CPU time of the thread that does them, which a busy machine changes little; the way
from the first to the last of them is in time on the wall.
"""

import json
import mmap
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final, Self

from rich.console import Console
from rich.table import Table

from benchmarks.parallel.handover_steps import BLOCK_SIZE, Recorded, record
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import write_figures
from tandem_engine.build import RANK_TIMEOUT_S
from tandem_engine.runner.rank_batches import columns_of
from tandem_engine.runner.rank_messages import StepEncoder
from tandem_engine.runner.step_channel import StepWriter, channel_bytes

CASES: Final = ("decode", "mixed", "beams")
_RING_BYTES: Final = 1 << 20
_WIDTH: Final = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    rows: tuple[int, ...]
    cases: tuple[str, ...]
    readers: tuple[int, ...]
    num_steps: int
    context: int
    pause_s: float
    spin_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Medians of a case; times are in microseconds."""

    case: str
    num_rows: int
    num_readers: int
    num_bytes: int
    """Of a step."""
    encode: float
    publish: float
    decode: float
    """From the message to the batch, on the slowest rank."""
    through: float
    """From the begin of encoding until the last rank has its batch: waking is in it."""
    pickle_bytes: int
    pickle_dumps: float
    pickle_loads: float

    @property
    def work(self) -> float:
        """Time on the processors, of the longest way: encode, publish, decode."""
        return self.encode + self.publish + self.decode


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show and write."""
    console = Console(width=max(Console().width, _WIDTH))
    load = os.getloadavg()[0]
    figures: list[Handover] = []
    for case in settings.cases:
        for num_rows in settings.rows:
            steps, set_up = record(
                case, num_rows, num_steps=settings.num_steps, context=settings.context
            )
            pickled = _pickle_times(steps[set_up:])
            figures += [
                _measure(
                    case,
                    num_rows,
                    num_readers,
                    steps=steps,
                    set_up=set_up,
                    pickled=pickled,
                    settings=settings,
                )
                for num_readers in settings.readers
            ]
    console.print(_table(figures), soft_wrap=True)
    console.print(f"Load average at the start: {load:.1f}", highlight=False)
    if out is not None:
        write_figures(
            out,
            load_average=load,
            settings=asdict(settings),
            handover=[{**asdict(row), "work": row.work} for row in figures],
        )


@dataclass(frozen=True, slots=True)
class _Pickled:
    num_bytes: int
    dumps: float
    loads: float


def _pickle_times(steps: Sequence[Recorded]) -> _Pickled:
    """Pickle whole steps with their tokens, as a pipe of `multiprocessing` does."""
    sizes, dumps, loads = [], [], []
    for recorded in steps:
        whole = (recorded.step, [] if recorded.batch is None else recorded.batch.token_ids.tolist())
        begin = time.thread_time_ns()
        data = pickle.dumps(whole, protocol=pickle.HIGHEST_PROTOCOL)
        middle = time.thread_time_ns()
        pickle.loads(data)  # noqa: S301  # its own
        loads.append(time.thread_time_ns() - middle)
        dumps.append(middle - begin)
        sizes.append(len(data))
    return _Pickled(int(median(sizes)), median(dumps) / 1e3, median(loads) / 1e3)


def _measure(
    case: str,
    num_rows: int,
    num_readers: int,
    *,
    steps: Sequence[Recorded],
    set_up: int,
    pickled: _Pickled,
    settings: Settings,
) -> Handover:
    with _Group(num_readers, spin_s=settings.spin_s) as group:
        for number, step in enumerate(steps):
            if number >= set_up:
                time.sleep(settings.pause_s)
            group.hand(step)
        came = group.finish()
    measured = group.times[set_up:]
    decodes, through = [], []
    for number, handed in enumerate(group.times):
        ranks = [of_rank[number] for of_rank in came]
        decodes.append(max(rank.decode for rank in ranks))
        through.append(max(rank.done for rank in ranks) - handed.began_at)
    return Handover(
        case=case,
        num_rows=num_rows,
        num_readers=num_readers,
        num_bytes=int(median(handed.num_bytes for handed in measured)),
        encode=median(handed.encode for handed in measured) / 1e3,
        publish=median(handed.publish for handed in measured) / 1e3,
        decode=median(decodes[set_up:]) / 1e3,
        through=median(through[set_up:]) / 1e3,
        pickle_bytes=pickled.num_bytes,
        pickle_dumps=pickled.dumps,
        pickle_loads=pickled.loads,
    )


@dataclass(frozen=True, slots=True)
class _Handed:
    """One step on rank 0; times are in nanoseconds."""

    num_messages: int
    num_bytes: int
    began_at: int
    encode: int
    publish: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """One step on another rank."""

    decode: int
    done: int


class _Group:
    """Rank 0 here, and the other ranks in processes of their own."""

    def __init__(self, num_readers: int, *, spin_s: float) -> None:
        size = channel_bytes(num_readers=num_readers, ring_bytes=_RING_BYTES)
        self._fd = os.memfd_create("steps")
        os.ftruncate(self._fd, size)
        memory = memoryview(mmap.mmap(self._fd, size))
        self._writer = StepWriter(memory, ranks=range(1, num_readers + 1), timeout_s=RANK_TIMEOUT_S)
        self._encoder = StepEncoder()
        self.times: list[_Handed] = []
        self._ranks = [self._start(place, spin_s) for place in range(num_readers)]

    def __enter__(self) -> Self:
        for rank in self._ranks:
            _expect(rank, "ready")
        return self

    def __exit__(self, *error: object) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()
        os.close(self._fd)

    def hand(self, recorded: Recorded) -> None:
        """Hand a step to the other ranks."""
        began_at, begin = time.monotonic_ns(), time.thread_time_ns()
        self._encoder.remove(recorded.removed)
        messages = [self._encoder.copies(recorded.step)]
        if recorded.batch is not None:
            messages.append(self._encoder.batch(columns_of(recorded.batch)))
        encoded = time.thread_time_ns()
        sent = [message for message in messages if message is not None]
        for message in sent:
            self._writer.publish(message)
        published = time.thread_time_ns()
        self.times.append(
            _Handed(
                num_messages=len(sent),
                num_bytes=sum(map(len, sent)),
                began_at=began_at,
                encode=encoded - begin,
                publish=published - encoded,
            )
        )

    def finish(self) -> list[list[_Taken]]:
        """Return the times of each rank, step by step."""
        self._writer.close()
        return [self._by_step(json.loads(_line(rank))) for rank in self._ranks]

    def _by_step(self, times: list[tuple[int, int]]) -> list[_Taken]:
        taken = []
        messages = iter(times)
        for handed in self.times:
            of_step = list(islice(messages, handed.num_messages))
            taken.append(_Taken(sum(decode for decode, _ in of_step), of_step[-1][1]))
        return taken

    def _start(self, place: int, spin_s: float) -> "subprocess.Popen[str]":
        command = (sys.executable, "-m", "benchmarks.parallel.handover_rank")
        arguments = map(str, (self._fd, place, BLOCK_SIZE, spin_s))
        return subprocess.Popen(
            [*command, *arguments], pass_fds=[self._fd], stdout=subprocess.PIPE, text=True
        )


def _line(rank: "subprocess.Popen[str]") -> str:
    line = rank.stdout.readline() if rank.stdout is not None else ""
    if not line:
        raise BenchmarkError("A rank ended before it was measured; see its output above.")
    return line


def _expect(rank: "subprocess.Popen[str]", text: str) -> None:
    line = _line(rank).strip()
    if line != text:
        raise BenchmarkError(f"A rank says '{line}' where '{text}' was due.")


def _table(figures: Sequence[Handover]) -> Table:
    table = Table(title="Handing a step to other ranks, µs (medians)")
    table.add_column("case")
    names = ("rows", "readers", "bytes", "encode", "publish", "decode", "sum", "through")
    for name in (*names, "pickle bytes", "dumps", "loads"):
        table.add_column(name, justify="right")
    for row in figures:
        times = (row.encode, row.publish, row.decode, row.work, row.through)
        table.add_row(
            row.case,
            str(row.num_rows),
            str(row.num_readers),
            f"{row.num_bytes:,}",
            *(f"{each:,.0f}" for each in times),
            f"{row.pickle_bytes:,}",
            f"{row.pickle_dumps:,.0f}",
            f"{row.pickle_loads:,.0f}",
        )
    return table
