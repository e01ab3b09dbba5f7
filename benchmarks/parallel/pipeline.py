"""Two pipeline stages with one thread each, with and without pipelining, beside one rank with two.

All of them compute the same prompts and the same decodes, in turns; every other round has them in
the opposite order. A figure is the median of the rounds' ratios, so that load which comes and goes
meets all. Without pipelining a step is over before the next one begins.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers.models import cache_folder, ensure_model
from benchmarks.peers.shapes import find_shape
from benchmarks.serving.result import write_figures
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step, StepResult
from tandem_engine.build import RANK_TIMEOUT_S
from tandem_engine.device.cpu.threads.compute_threads import PIN_VARIABLE
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.model.decoder import allocate_kv_cache
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.executor import Executor, LocalExecutor
from tandem_engine.runner.rank_group import RankGroup
from tandem_engine.runner.rank_process import RankSettings, load_part
from tandem_engine.runner.runner import ModelRunner

STAGES: Final = 2
NAMES: Final = ("one rank", "in turns", "pipelined")
"""A rank with two threads, stages one after the other, and stages at the same time."""
_BLOCK_SIZE: Final = 128
_ORDINARY: Final = 16
"""Token ids below are special ones."""
_WIDTH: Final = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    model: str
    models: Path | None
    prompts: int
    tokens: int
    """Of a prompt."""
    decodes: int
    """Tokens of each row behind its prompt."""
    rounds: int

    @property
    def blocks_each(self) -> int:
        """KV blocks of a row."""
        return -(-(self.tokens + self.decodes + 1) // _BLOCK_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds of the prompts' steps or of the decodes, round by round."""

    load: str
    seconds: dict[str, list[float]]

    def ratio(self, name: str, beside: str) -> float:
        """Speed of one beside that of another: 1 is as fast, more is faster."""
        pairs = zip(self.seconds[beside], self.seconds[name], strict=True)
        return median(other / own for other, own in pairs)


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show, write."""
    path = ensure_model(find_shape(settings.model), settings.models or cache_folder() / "models")
    load = os.getloadavg()[0]
    # Ranks inherit it: cores that one side has locked would be none of the other's.
    os.environ[PIN_VARIABLE] = "off"
    runtime = open_device("cpu")
    with _executors(settings, str(path), runtime) as (one_rank, stages):
        figures = _measure(settings, runtime, one_rank, stages)
    console = Console(width=max(Console().width, _WIDTH))
    console.print(_table(figures, settings), soft_wrap=True)
    console.print(f"Load average at the start: {load:.1f}", highlight=False)
    if out is not None:
        write_figures(
            out,
            load_average=load,
            settings=asdict(settings),
            figures=[asdict(row) for row in figures],
        )


@contextmanager
def _executors(
    settings: Settings, path: str, runtime: DeviceRuntime
) -> Iterator[tuple[Executor, Executor]]:
    def of(shape: ParallelShape) -> RankSettings:
        return RankSettings(
            model_path=path,
            shape=shape,
            block_size=_BLOCK_SIZE,
            max_positions=settings.tokens + settings.decodes + 1,
            timeout_s=RANK_TIMEOUT_S,
        )

    num_blocks = settings.prompts * settings.blocks_each
    decoder = load_part(of(ParallelShape()), runtime, 0)
    cache = allocate_kv_cache(
        decoder.cache_layout(_BLOCK_SIZE), num_blocks=num_blocks, device="cpu"
    )
    shared = of(ParallelShape(pp=STAGES))
    with RankGroup(shared) as group:
        stages = group.join(load_part(shared, runtime, 0), CacheSizes(num_blocks=num_blocks))
        runtime.begin_steps()
        yield LocalExecutor(decoder, cache), stages


def _measure(
    settings: Settings, runtime: DeviceRuntime, one_rank: Executor, stages: Executor
) -> list[Figures]:
    prompts = Figures(load="prefill", seconds={name: [] for name in NAMES})
    decodes = Figures(load="decode", seconds={name: [] for name in NAMES})
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "one rank": lambda: _run(settings, one_rank, runtime, num_threads=STAGES, at_once=1),
        "in turns": lambda: _run(settings, stages, runtime, num_threads=1, at_once=1),
        "pipelined": lambda: _run(settings, stages, runtime, num_threads=1, at_once=STAGES),
    }
    for number in range(settings.rounds + 1):
        for name in NAMES if number % 2 else NAMES[::-1]:
            prefill_s, decode_s = sides[name]()
            if number:  # a first round warms them up
                prompts.seconds[name].append(prefill_s)
                decodes.seconds[name].append(decode_s)
    return [prompts, decodes]


def _run(
    settings: Settings,
    executor: Executor,
    runtime: DeviceRuntime,
    *,
    num_threads: int,
    at_once: int,
) -> tuple[float, float]:
    """Seconds of the prompts, a step each, and of the decodes of all rows.

    Pipelined, each stage has its share of the rows; else all rows are in one step.
    """
    runtime.set_num_threads(num_threads)
    # Those of the kernels compute; torch's own spin between two operators.
    torch.set_num_threads(1)
    runner = ModelRunner(executor, runtime=runtime, block_size=_BLOCK_SIZE)
    rows = list(range(settings.prompts))
    for request in _requests(settings, executor.vocab_size):
        runner.add(request)
    prompts = [_step(settings, [row], 0, settings.tokens) for row in rows]
    shares = [rows[at::at_once] for at in range(at_once)]
    decodes = [
        _step(settings, share, settings.tokens + number, 1)
        for number in range(settings.decodes)
        for share in shares
    ]
    try:
        seconds = (_time(runner, prompts, at_once), _time(runner, decodes, at_once))
        for row in rows:
            runner.remove(f"row-{row}")
        runner.run(Step())
    finally:
        runner.close()
    return seconds


def _time(runner: ModelRunner, steps: Sequence[Step], at_once: int) -> float:
    """Seconds of all steps, of which so many are in flight."""
    begin = time.perf_counter()
    handles = deque(runner.submit(step) for step in steps[:at_once])
    for step in steps[at_once:]:
        _check(handles.popleft().result())
        handles.append(runner.submit(step))
    for handle in handles:
        _check(handle.result())
    return time.perf_counter() - begin


def _check(result: StepResult) -> None:
    assert not result.failed, result.failed  # noqa: S101  # what failed has no time


def _requests(settings: Settings, vocab_size: int) -> Iterator[Request]:
    chance = Random(0)  # noqa: S311  # load, not secrets
    most = settings.decodes + 1
    for row in range(settings.prompts):
        yield Request(
            request_id=f"row-{row}",
            prompt_token_ids=tuple(chance.choices(range(_ORDINARY, vocab_size), k=settings.tokens)),
            sampling=SamplingParams(max_tokens=most, temperature=0.0),
            max_new_tokens=most,
            seeds=(0,),
        )


def _step(settings: Settings, rows: Sequence[int], begin: int, length: int) -> Step:
    each = settings.blocks_each
    return Step(
        sequence_ids=tuple(f"row-{row}" for row in rows),
        num_tokens=(length,) * len(rows),
        starts=(begin,) * len(rows),
        block_tables=tuple(tuple(range(row * each, (row + 1) * each)) for row in rows),
        num_decodes=len(rows) if begin else 0,
    )


def _table(figures: Sequence[Figures], settings: Settings) -> Table:
    table = Table(
        title=f"Model {settings.model}: {STAGES} stages with a thread each, beside one rank with "
        f"{STAGES} threads; {settings.prompts} prompts of {settings.tokens} tokens"
    )
    table.add_column("steps")
    for name in NAMES:
        table.add_column(f"{name}, s", justify="right")
    table.add_column("pipelined beside in turns", justify="right")
    table.add_column("pipelined beside one rank", justify="right")
    for row in figures:
        table.add_row(
            row.load,
            *(f"{median(row.seconds[name]):.3f}" for name in NAMES),
            f"{row.ratio('pipelined', 'in turns'):.3f}",
            f"{row.ratio('pipelined', 'one rank'):.3f}",
        )
    return table
