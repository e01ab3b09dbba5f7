"""Prompts in turns, with log-probabilities and without, on an engine without a server."""

import asyncio
import os
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.models import cache_folder, ensure_model
from benchmarks.peers.shapes import SHAPES
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.result import write_figures
from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.engine_client import OutputStream
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.device.cpu.memory import peak_since_reset, reset_peak, resident_memory

_BLOCK: Final = 128
_STREAM_PROMPT: Final = 16
_STREAM_TOKENS: Final = 8
"""Tokens of the stream before the prompt comes."""
_MOST_STREAMED: Final = 1024
"""Tokens of it at most: more than the steps of any prompt."""
_MIB: Final = 2**20
_MS: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    model: str
    num_tokens: int
    num_top: int
    chunk: int
    num_threads: int | None
    rounds: int
    folder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians of one side over the rounds."""

    wall_s: float
    """From the request to its only token, alone."""
    cpu_s: float
    """Of the whole process meanwhile."""
    peak_bytes: float
    """Memory above that before the request, at most."""
    gap_s: float
    """Between two tokens of a stream, while the prompt is computed: in the middle."""
    largest_gap_s: float


@dataclass(frozen=True, slots=True)
class _Run:
    wall_s: float
    cpu_s: float
    peak_bytes: int
    gaps_s: tuple[float, ...]


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show and write.

    Raises:
        WrongUsage: The model is unknown, or does not take such a prompt.
    """
    if settings.model not in SHAPES:
        raise WrongUsage(
            f"--model '{settings.model}' is not one of {', '.join(SHAPES)}; choose one."
        )
    load = os.getloadavg()[0]
    try:
        runs = asyncio.run(_runs(settings))
    except ConfigError as error:
        raise WrongUsage(
            f"A prompt of {settings.num_tokens} tokens in chunks of {settings.chunk} cannot be "
            f"measured with model {settings.model}: {error}"
        ) from None
    figures = {name: _middle(of_side) for name, of_side in runs.items()}
    console = Console(width=max(Console().width, 120), highlight=False)
    console.print(_table(figures, settings), soft_wrap=True)
    console.print(f"Load average at the start: {load:.1f}")
    if out is not None:
        write_figures(
            out,
            load_average=load,
            settings=asdict(settings),
            figures={name: asdict(side) for name, side in figures.items()},
        )


async def _runs(settings: Settings) -> dict[str, list[_Run]]:
    """The runs of each side, in turns, behind one of each that warms up."""
    bench = _Bench(settings)
    sides = {"without": None, "with": settings.num_top}
    runs: dict[str, list[_Run]] = {name: [] for name in sides}
    try:
        for turn in range(settings.rounds + 1):
            for name, num_top in sides.items():
                run = await bench.run(num_top)
                if turn:
                    runs[name].append(run)
    finally:
        await bench.engine.stop()
    return runs


class _Bench:
    """An engine, and the requests that it is sent."""

    def __init__(self, settings: Settings) -> None:
        shape = SHAPES[settings.model]
        folder = ensure_model(shape, settings.folder or cache_folder() / "models")
        longest = max(settings.num_tokens + 1, _STREAM_PROMPT + _MOST_STREAMED)
        self.engine: AsyncEngine = build_engine(
            EngineConfig(
                model_path=str(folder),
                dtype="bfloat16",
                max_seq_len=longest,
                num_kv_blocks=2 * (-(-longest // _BLOCK) + 1),
                num_threads=settings.num_threads,
                schedule=ScheduleConfig(
                    template_type="Mix",
                    enable_prefix_cache=False,
                    split_fuse=SplitFuseConfig(
                        split_chunk_tokens=settings.chunk, split_start_batch_size=0
                    ),
                ),
            ),
            report=lambda _: None,
        )
        self._num_tokens, self._vocab = settings.num_tokens, shape.vocab_size
        self._rng = Random(0)  # noqa: S311  # load, not secrets
        self._number = 0

    async def run(self, num_top: int | None) -> _Run:
        """A prompt alone, then another one beside a stream."""
        if not reset_peak():
            raise BenchmarkError(
                "The kernel does not let the peak of memory be reset (/proc/self/clear_refs), so "
                "there is no peak of one prompt; run it outside of the sandbox that forbids it."
            )
        before, begun, cpu = resident_memory(), time.monotonic(), time.process_time()
        await self._prompt(num_top)
        wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
        peak = peak_since_reset() - before
        return _Run(wall_s, cpu_s, peak, await self._gaps_beside(num_top))

    async def _gaps_beside(self, num_top: int | None) -> tuple[float, ...]:
        """Gaps of a stream from the prompt's request to its answer, the last one whole."""
        stream = self._submit(_STREAM_PROMPT, max_tokens=_MOST_STREAMED)
        times: list[float] = []
        prompt: asyncio.Task[None] | None = None
        async for _ in stream:
            times.append(time.monotonic())
            if len(times) == _STREAM_TOKENS:
                prompt = asyncio.create_task(self._prompt(num_top))
            if prompt is not None and prompt.done():
                break
        stream.abort()
        return tuple(after - first for first, after in pairwise(times[_STREAM_TOKENS - 1 :]))

    async def _prompt(self, num_top: int | None) -> None:
        async for _ in self._submit(self._num_tokens, max_tokens=1, prompt_logprobs=num_top):
            pass

    def _submit(self, length: int, **sampling: Any) -> OutputStream:
        self._number += 1
        return self.engine.submit(
            str(self._number),
            [self._rng.randrange(3, self._vocab) for _ in range(length)],
            SamplingParams(temperature=0.0, ignore_eos=True, **sampling),
        )


def _middle(runs: list[_Run]) -> Figures:
    return Figures(
        wall_s=median(run.wall_s for run in runs),
        cpu_s=median(run.cpu_s for run in runs),
        peak_bytes=median(run.peak_bytes for run in runs),
        gap_s=median(median(run.gaps_s) for run in runs),
        largest_gap_s=median(max(run.gaps_s) for run in runs),
    )


def _table(figures: dict[str, Figures], settings: Settings) -> Table:
    table = Table(
        title=f"A prompt of {settings.num_tokens} tokens, model {settings.model}, the "
        f"{settings.num_top} likeliest of each position, chunks of {settings.chunk}",
        title_justify="left",
        box=None,
    )
    table.add_column("log-probabilities")
    names = ("wall s", "CPU s", "peak MiB", "gap of a stream ms", "largest gap ms")
    for name in names:
        table.add_column(name, justify="right")
    for name, side in figures.items():
        table.add_row(
            name,
            f"{side.wall_s:.2f}",
            f"{side.cpu_s:.2f}",
            f"{side.peak_bytes / _MIB:.0f}",
            f"{side.gap_s * _MS:.1f}",
            f"{side.largest_gap_s * _MS:.1f}",
        )
    without, with_ = figures["without"], figures["with"]
    table.add_row(
        "ratio",
        f"{with_.wall_s / without.wall_s:.2f}",
        f"{with_.cpu_s / without.cpu_s:.2f}",
        "",
        f"{with_.gap_s / without.gap_s:.2f}",
        f"{with_.largest_gap_s / without.largest_gap_s:.2f}",
    )
    return table
