"""One side of the benchmark of tp: an engine's runner in a process of its own.

One rank computes with as many threads as there are ranks on the other side, each with one thread.
"""

import gc
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.overlap.link import LOOPBACK
from benchmarks.overlap.link_communicator import LinkWorld
from tandem_engine.api.config import DType, Quantization
from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step
from tandem_engine.build import RANK_TIMEOUT_S
from tandem_engine.device.registry import open_device
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.executor import Executor, LocalExecutor
from tandem_engine.runner.group_executor import GroupExecutor
from tandem_engine.runner.rank_group import RankGroup
from tandem_engine.runner.rank_process import RankSettings, load_part
from tandem_engine.runner.runner import ModelRunner

BLOCK_SIZE: Final = 128
_ORDINARY: Final = 16
"""Token ids below are special ones."""
_MEMORY: Final = ("RssAnon", "RssFile", "RssShmem", "VmHWM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Steps of one kind."""

    name: str
    num_rows: int
    num_tokens: int
    """Of each row's prompt."""
    num_decodes: int = 0
    """Steps to time behind the prompts; 0: the prompts' own step is timed."""

    @property
    def num_blocks(self) -> int:
        """KV blocks of all rows."""
        return self.num_rows * -(-(self.num_tokens + self.num_decodes + 1) // BLOCK_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a side computes with."""

    model_path: str
    tp: int
    num_threads: int
    """Of each rank."""
    num_blocks: int
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    max_positions: int = 4096
    pin: bool = True
    """Give each rank cores of its own, which it has with the machine to itself. Two sides cannot
    lock the same cores, so ranks of neither do."""
    micro_batch: bool = False
    """Cut steps where the gate finds that it pays."""
    over_loopback: bool = False
    """Exchange tensors over loopback, not through memory."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of each step of a load."""

    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that a rank holds, by the names of /proc/PID/status, and `Private`.

    Private are the pages that no other process has: what a further rank really costs.
    """

    rank: int
    held: dict[str, int]


@dataclass(frozen=True, slots=True)
class MeasureMemory:
    """Asks a side what each of its ranks holds."""


@dataclass(frozen=True, slots=True)
class AskMicroBatches:
    """Asks a side what micro-batches have done."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The answer."""

    stats: MicroBatchStats | None
    """None: they are off, or there is one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Report of a side that is ready."""

    threads: str
    weight_bytes: int
    """Of the whole model, as in its file."""
    kv_bytes: int
    """Of the whole model's cache."""
    base_bytes: int
    """Of the process before it loaded the model, pages of files left out: Python and torch."""


def main(side: Side, connection: Connection) -> None:
    """Compute the loads that come through a pipe, until it ends."""
    os.environ["TANDEM_PIN"] = "off"
    with _opened(side) as (executor, opened, pids):
        if side.pin:
            _pin(pids, side.num_threads)
        runtime = open_device("cpu")
        runner = ModelRunner(executor, runtime=runtime, block_size=BLOCK_SIZE)
        connection.send(opened)
        while True:
            try:
                asked = connection.recv()
            except EOFError:
                return
            if isinstance(asked, MeasureMemory):
                connection.send([_memory(rank, pid) for rank, pid in enumerate(pids)])
            elif isinstance(asked, AskMicroBatches):
                group = executor if isinstance(executor, GroupExecutor) else None
                connection.send(MicroBatches(group.micro_batch_stats() if group else None))
            else:
                connection.send(Timed(tuple(_measure(runner, executor.vocab_size, asked))))


@contextmanager
def _opened(side: Side) -> Iterator[tuple[Executor, Opened, list[int]]]:
    """The executor of a side, and the processes of its ranks."""
    runtime = open_device("cpu")
    threads = runtime.set_num_threads(side.num_threads)
    base = _memory(0, os.getpid()).held["RssAnon"]
    shape = ParallelShape(tp=side.tp)
    settings = RankSettings(
        model_path=side.model_path,
        shape=shape,
        block_size=BLOCK_SIZE,
        dtype=side.dtype,
        quantization=side.quantization,
        max_positions=side.max_positions,
        num_threads=side.num_threads,
        micro_batch=side.micro_batch,
        timeout_s=RANK_TIMEOUT_S,
    )
    sizes = CacheSizes(num_blocks=side.num_blocks)
    if side.tp == 1:
        decoder = load_part(settings, runtime, 0)
        cache = allocate_kv_cache(
            decoder.cache_layout(BLOCK_SIZE), num_blocks=side.num_blocks, device="cpu"
        )
        runtime.begin_steps()
        yield LocalExecutor(decoder, cache), _report(side, decoder, threads, base), [os.getpid()]
        return
    world = LinkWorld([LOOPBACK] * side.tp) if side.over_loopback else None
    with RankGroup(settings, world=world) as group:
        decoder = load_part(settings, runtime, 0)
        executor = group.join(decoder, sizes)
        runtime.begin_steps()
        yield executor, _report(side, decoder, threads, base), [os.getpid(), *group.pids]


def _pin(pids: Sequence[int], num_threads: int) -> None:
    """Keep all threads of a rank on cores of its own, one a compute thread."""
    usable = sorted(os.sched_getaffinity(0))
    for rank, pid in enumerate(pids):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores_of(rank, num_threads, usable))


def cores_of(rank: int, num_threads: int, usable: Sequence[int]) -> set[int]:
    """Cores of a rank's threads; all of them where there are too few for every rank."""
    own = usable[rank * num_threads : (rank + 1) * num_threads]
    return set(own if len(own) == num_threads else usable)


def _report(side: Side, decoder: Decoder, threads: str, base_bytes: int) -> Opened:
    layout = decoder.cache_layout(BLOCK_SIZE)
    files = Path(side.model_path).glob("*.safetensors")
    return Opened(
        threads=threads,
        weight_bytes=sum(file.stat().st_size for file in files),
        kv_bytes=layout.block_bytes * side.num_blocks * side.tp,
        base_bytes=base_bytes,
    )


def _measure(runner: ModelRunner, vocab_size: int, load: Load) -> list[float]:
    """Seconds of each step of a load; rows are new."""
    each = load.num_blocks // load.num_rows
    tables = [tuple(range(row * each, (row + 1) * each)) for row in range(load.num_rows)]
    requests = list(_requests(vocab_size, load))
    names = [request.request_id for request in requests]
    for request in requests:
        runner.add(request)
    gc.collect()
    gc.disable()
    try:
        first = _time(runner, _step(names, tables, load.num_tokens, begin=0))
        decodes = [
            _time(runner, _step(names, tables, 1, begin=load.num_tokens + number))
            for number in range(load.num_decodes)
        ]
    finally:
        gc.enable()
        for name in names:
            runner.remove(name)
    return decodes or [first]


def _requests(vocab_size: int, load: Load) -> Iterator[Request]:
    chance = Random(load.name)  # noqa: S311  # load, not secrets
    most = load.num_decodes + 1
    for row in range(load.num_rows):
        prompt = chance.choices(range(_ORDINARY, vocab_size), k=load.num_tokens)
        yield Request(
            request_id=f"row-{row}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=most, temperature=0.0),
            max_new_tokens=most,
            seeds=(0,),
        )


def _step(names: list[str], tables: list[tuple[int, ...]], length: int, *, begin: int) -> Step:
    return Step(
        sequence_ids=tuple(names),
        num_tokens=(length,) * len(names),
        starts=(begin,) * len(names),
        block_tables=tuple(tables),
        num_decodes=len(names) if begin else 0,
    )


def _time(runner: ModelRunner, step: Step) -> float:
    begin = time.perf_counter()
    result = runner.run(step)
    taken = time.perf_counter() - begin
    assert not result.failed, result.failed  # noqa: S101  # what failed has no time
    return taken


def _memory(rank: int, pid: int) -> RankMemory:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    held = {
        name: int(re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)[1]) << 10  # type: ignore[index]
        for name in _MEMORY
    }
    pages = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    private = re.findall(r"^Private_\w+:\s+(\d+) kB$", pages, re.MULTILINE)
    return RankMemory(rank, {**held, "Private": sum(map(int, private)) << 10})
