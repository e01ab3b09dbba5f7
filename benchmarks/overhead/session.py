"""One run of the benchmark: an AsyncEngine as a server has it, without the server."""
# ruff: noqa: SLF001  # it times what is inside of the engine

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise, product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from rich.console import Console

from benchmarks.overhead.profiler import PARTS, Profiler
from benchmarks.overhead.report import Figures, show, write_json
from benchmarks.peers.models import cache_folder, ensure_model
from benchmarks.peers.shapes import SHAPES
from benchmarks.serving.errors import WrongUsage
from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import SamplingParams
from tandem_engine.build import build_engine

_BLOCK: Final = 128
_SAMPLINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 1},
    "penalised": {
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "seed": 1,
    },
}
_MODES: Final = {"default": (None,), "on": (True,), "off": (False,), "both": (False, True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    models: tuple[str, ...]
    rows: tuple[int, ...]
    samplings: tuple[str, ...]
    async_scheduling: str
    num_threads: int | None
    num_steps: int
    num_prompt: int
    repeats: int
    folder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to load an engine."""

    model: str
    num_rows: int
    sampling: str
    async_scheduling: bool | None
    """None: as the engine has it by default."""


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show and write.

    Raises:
        WrongUsage: a name is unknown.
    """
    _check(settings)
    console = Console(width=max(Console().width, 140), highlight=False)
    num_threads = settings.num_threads or len(os.sched_getaffinity(0))
    cases = [
        Case(model=model, num_rows=rows, sampling=sampling, async_scheduling=async_scheduling)
        for model, rows, sampling, async_scheduling in product(
            settings.models, settings.rows, settings.samplings, _MODES[settings.async_scheduling]
        )
    ]
    figures: list[Figures] = []
    for model in settings.models:
        benches = {
            async_scheduling: _Bench(
                model, settings, num_threads, async_scheduling=async_scheduling
            )
            for async_scheduling in _MODES[settings.async_scheduling]
        }
        runs: dict[Case, list[Figures]] = {}
        for _ in range(settings.repeats):
            for case in (each for each in cases if each.model == model):
                runs.setdefault(case, []).append(benches[case.async_scheduling].run(case, settings))
        for bench in benches.values():
            bench.stop()
        figures += map(_middle, runs.values())
    show(console, figures, num_threads=num_threads)
    if out is not None:
        write_json(out, figures, settings={**asdict(settings), "num_threads": num_threads})


def _check(settings: Settings) -> None:
    for option, given, known in (
        ("--model", settings.models, SHAPES),
        ("--sampling", settings.samplings, _SAMPLINGS),
        ("--async-scheduling", (settings.async_scheduling,), _MODES),
    ):
        for name in given:
            if name not in known:
                raise WrongUsage(f"{option} '{name}' is not one of {', '.join(known)}; choose one.")


class _Bench:
    """An engine with a profiler beside its parts."""

    def __init__(
        self, model: str, settings: Settings, num_threads: int, *, async_scheduling: bool | None
    ) -> None:
        folder = ensure_model(SHAPES[model], settings.folder or cache_folder() / "models")
        longest = settings.num_prompt + settings.num_steps + 1
        most = max(settings.rows)
        extra: dict[str, Any] = (
            {} if async_scheduling is None else {"async_scheduling_enable": async_scheduling}
        )
        config = EngineConfig(
            model_path=str(folder),
            dtype="bfloat16",
            max_seq_len=longest,
            num_kv_blocks=most * (-(-longest // _BLOCK) + 1),
            num_threads=num_threads,
            schedule=ScheduleConfig(
                template_type="Mix",
                max_batch_size=max(2, most),
                enable_prefix_cache=False,
                split_fuse=SplitFuseConfig(split_chunk_tokens=2048, split_start_batch_size=0),
                **extra,
            ),
        )
        self._vocab = SHAPES[model].vocab_size
        self._events = asyncio.new_event_loop()
        self._engine = build_engine(config, report=lambda _: None)
        self._profiler = Profiler(num_threads)
        self._number = 0
        self._attach()

    def _attach(self) -> None:
        profiler, loop = self._profiler, self._engine._loop
        engine = loop._engine
        scheduler, runner = engine._scheduler, engine._runner
        profiler.time_loop(loop, "_step")
        profiler.time_calls(scheduler, "schedule", "schedule")
        profiler.time_calls(scheduler, "schedule_async", "schedule")
        profiler.time_calls(scheduler, "complete", "complete")
        profiler.time_calls(runner, "prepare", "batch")
        profiler.time_calls(runner, "sample", "sample")
        profiler.time_forward(runner, "forward")

    def run(self, case: Case, settings: Settings) -> "Figures":
        """So many sequences that decode so many steps."""
        self._profiler.clear()
        self._events.run_until_complete(self._serve(case, settings))
        return _figures(case, self._profiler)

    def stop(self) -> None:
        """End the engine's thread."""
        self._events.run_until_complete(self._engine.stop())
        self._events.close()

    async def _serve(self, case: Case, settings: Settings) -> None:
        rng = Random(0)  # noqa: S311  # load, not secrets
        sampling = SamplingParams(
            **_SAMPLINGS[case.sampling], max_tokens=settings.num_steps, ignore_eos=True
        )
        self._number += 1
        streams = [
            self._engine.submit(
                f"{self._number}-{row}",
                [rng.randrange(3, self._vocab) for _ in range(settings.num_prompt)],
                sampling,
            )
            for row in range(case.num_rows)
        ]
        await asyncio.gather(*map(_drain, streams))


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def _figures(case: Case, profiler: Profiler) -> Figures:
    periods = [after - before for before, after in pairwise(profiler.began)]
    return Figures(
        model=case.model,
        num_rows=case.num_rows,
        sampling=case.sampling,
        async_scheduling=case.async_scheduling,
        parts_s={part: _a_step(profiler.taken[part], len(profiler.began)) for part in PARTS},
        forward_wall_s=median(profiler.lasted),
        period_s=median(periods),
    )


def _a_step(times: list[float], num_steps: int) -> float:
    """Seconds of a part in a step in the middle; it may be called more than once in each."""
    calls = max(1, round(len(times) / num_steps))
    return (
        median(sum(islice(times, at, at + calls)) for at in range(0, len(times), calls))
        if times
        else 0.0
    )


def _middle(runs: list[Figures]) -> Figures:
    """The median of each figure over the repeats."""
    return replace(
        runs[0],
        parts_s={part: median([run.parts_s[part] for run in runs]) for part in PARTS},
        forward_wall_s=median([run.forward_wall_s for run in runs]),
        period_s=median([run.period_s for run in runs]),
    )
