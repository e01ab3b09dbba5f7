"""Runs the comparison: engines in turns, each in a fresh process, rows with new prompts."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, TypeVar

from benchmarks.peers.engines import ROOFLINE, TYPES, InstalledEngine
from benchmarks.peers.process import RunnerFailed, RunnerProcess
from benchmarks.peers.roofline import Roofline, sizes_of
from benchmarks.peers.rows import PeerRow
from benchmarks.peers.runners.protocol import (
    Load,
    Loaded,
    MeasureRoofline,
    Message,
    RooflineRates,
    Row,
    Times,
)
from benchmarks.peers.shapes import ModelShape

_FIRST: Final = 32
"""Tokens of the prompt whose first token ends the loading."""
_FIRST_OUTPUT: Final = 64
"""Tokens of each answer in the first seconds."""
SAMPLE_S: Final = 0.5
_WARM_PROMPT: Final = 512
_WARM_OUTPUT: Final = 2
_ORDINARY: Final = 16
"""Token ids below are special ones."""
_MOST_SAMPLES: Final = 20

_Answer = TypeVar("_Answer", Loaded, Times, RooflineRates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a comparison."""

    rows: tuple[PeerRow, ...]
    repeats: int
    row_s: float
    """A row is measured again until it was measured for so long, in each process."""
    timeout_s: float
    """Longest answer of a runner."""
    first_s: float = 0.0
    """So long one sequence runs right after loading; 0: it does not."""
    cores: tuple[int, ...]
    """Logical CPUs that engines may use, as many as they have threads."""
    pin: bool = False
    """Bind each thread to one of them; unbound, another program's thread can be evaded."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One engine, one model, one type of weights, once."""

    repeat: int
    model: str
    weights: str
    engine: InstalledEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A row, measured once."""

    row: PeerRow
    times_s: Sequence[Sequence[float]]
    """When each token of each sequence came, after the row was submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Result of a turn."""

    engine: str
    model: str
    weights: str
    repeat: int
    version: str = ""
    settings: Mapping[str, Any]
    load_s: float | None = None
    """From the start of the process to its first token."""
    peak_bytes: int | None = None
    first_rates: Sequence[float] = ()
    """Tokens a second of one sequence in each half of a second right after loading."""
    samples: Sequence[Sample] = ()
    error: str | None = None
    """The reason for a missing or incomplete result."""


class Runner(Protocol):
    """The part of `RunnerProcess` that a turn uses; tests have one without a process."""

    begin_s: float

    def ask(self, message: Message, *, timeout_s: float) -> Message:
        """Send a message and wait for its answer."""

    def peak_bytes(self) -> int | None:
        """Most memory that it had."""


def turns(
    engines: Sequence[InstalledEngine],
    models: Sequence[str],
    types: Sequence[str],
    *,
    repeats: int,
) -> Iterator[Turn]:
    """All turns in their order: engines alternate, and every other repeat goes backwards.

    So no engine always has the machine that another one warmed up, or a quieter hour than others.
    """
    for repeat in range(repeats):
        order = list(engines) if repeat % 2 == 0 else list(reversed(engines))
        for model in models:
            for weights in types:
                for engine in order:
                    if weights in engine.kind.types:
                        yield Turn(repeat=repeat, model=model, weights=weights, engine=engine)


def run_turn(
    turn: Turn,
    shape: ModelShape,
    file: Path,
    settings: Settings,
    *,
    log: Path,
    note: Callable[[str], None],
) -> TurnResult:
    """Run an engine's turn in a process of its own; a failure stands in the result.

    Args:
        turn: The turn.
        shape: Its model.
        file: The model in the engine's format.
        settings: Options of the comparison.
        log: File for the engine's output.
        note: Called with a line before each row.
    """
    try:
        with RunnerProcess(turn.engine, settings.cores, pin=settings.pin, log=log) as runner:
            return measure(runner, turn, shape, file, settings, note=note)
    except RunnerFailed as error:
        return _failed(turn, error)


def measure(
    runner: Runner,
    turn: Turn,
    shape: ModelShape,
    file: Path,
    settings: Settings,
    *,
    note: Callable[[str], None],
) -> TurnResult:
    """Run all rows; one that fails ends the turn, and those before it count."""
    chance = Random(settings.seed + turn.repeat)  # noqa: S311  # load, not secrets
    name = f"{turn.engine.kind.title} {turn.model} {turn.weights}"
    samples: list[Sample] = []
    first_rates: list[float] = []
    load_s: float | None = None
    loaded = Loaded(version="", settings={})
    try:
        note(f"{name}: loading")
        answer = runner.ask(_load(turn, shape, file, settings), timeout_s=settings.timeout_s)
        loaded = _expect(answer, Loaded)
        runner.ask(_prompts(shape, 1, _FIRST, 1, chance), timeout_s=settings.timeout_s)
        load_s = time.perf_counter() - runner.begin_s
        note(f"{name}: the first seconds")
        first_rates = _measure_first(runner, shape, settings, chance)
        for row in settings.rows:
            note(f"{name}: {row}")
            samples += _measure_row(runner, shape, row, settings, chance)
        error = None
    except RunnerFailed as failure:
        error = str(failure)
    return TurnResult(
        engine=turn.engine.kind.name,
        model=turn.model,
        weights=turn.weights,
        repeat=turn.repeat,
        version=loaded.version,
        settings=loaded.settings,
        load_s=load_s,
        peak_bytes=runner.peak_bytes(),
        first_rates=first_rates,
        samples=samples,
        error=error,
    )


def measure_roofline(
    python: Path, shape: ModelShape, settings: Settings, *, with_w8a8: bool, log: Path
) -> tuple[Roofline, str]:
    """Measure the machine's limits for a model now; return them and the program that read memory.

    Raises:
        RunnerFailed: it cannot be measured.
    """
    message = MeasureRoofline(
        gemms=[list(gemm) for gemm in shape.gemms],
        num_layers=shape.num_layers,
        sizes=sizes_of(settings.rows),
        types=list(TYPES if with_w8a8 else TYPES[:1]),
        num_threads=len(settings.cores),
    )
    engine = InstalledEngine(kind=ROOFLINE, python=python)
    with RunnerProcess(engine, settings.cores, pin=settings.pin, log=log) as runner:
        roof = _expect(runner.ask(message, timeout_s=settings.timeout_s), RooflineRates)
    line = Roofline(bandwidth=roof.bandwidth, bf16=_by_size(roof.bf16), w8a8=_by_size(roof.w8a8))
    return line, roof.bandwidth_by


def _measure_first(
    runner: Runner, shape: ModelShape, settings: Settings, chance: Random
) -> list[float]:
    """Run one sequence after the other for `first_s`; return the rate of each half second."""
    rows: list[Sequence[float]] = []
    while sum(times[-1] for times in rows) < settings.first_s:
        row_message = _prompts(shape, 1, _FIRST, _FIRST_OUTPUT, chance)
        answer = _expect(runner.ask(row_message, timeout_s=settings.timeout_s), Times)
        rows += answer.times_s
    return rates_of(rows)


def rates_of(rows: Sequence[Sequence[float]]) -> list[float]:
    """Tokens a second in each half of a second, of rows one after the other; prompts not counted.

    Args:
        rows: When each token of a row came, after the row was submitted.
    """
    gaps: dict[int, list[float]] = {}
    begin_s = 0.0
    for times in rows:
        for before, after in pairwise(times):
            gaps.setdefault(int((begin_s + after) / SAMPLE_S), []).append(after - before)
        begin_s += times[-1]
    return [len(within) / sum(within) for _, within in sorted(gaps.items())]


def _measure_row(
    runner: Runner, shape: ModelShape, row: PeerRow, settings: Settings, chance: Random
) -> list[Sample]:
    """Warm a row's shapes up, then measure it until `row_s` is spent."""
    length, num_output = row.shape.num_input, row.shape.num_output
    warm = _prompts(
        shape,
        row.concurrency,
        min(length, _WARM_PROMPT),
        min(num_output, _WARM_OUTPUT),
        chance,
        is_sampled=row.is_sampled,
    )
    runner.ask(warm, timeout_s=settings.timeout_s)
    samples: list[Sample] = []
    spent_s = 0.0
    while not samples or (spent_s < settings.row_s and len(samples) < _MOST_SAMPLES):
        row_message = _prompts(
            shape, row.concurrency, length, num_output, chance, is_sampled=row.is_sampled
        )
        answer = _expect(runner.ask(row_message, timeout_s=settings.timeout_s), Times)
        samples.append(Sample(row=row, times_s=answer.times_s))
        spent_s += max(times[-1] for times in answer.times_s)
    return samples


def _prompts(
    shape: ModelShape,
    count: int,
    length: int,
    num_output: int,
    chance: Random,
    *,
    is_sampled: bool = False,
) -> Row:
    """New prompts by chance: no prefix cache may know them."""
    ids = range(_ORDINARY, shape.vocab_size)
    prompts = [chance.choices(ids, k=length) for _ in range(count)]
    return Row(prompts=prompts, num_output=num_output, is_sampled=is_sampled)


def _load(turn: Turn, shape: ModelShape, file: Path, settings: Settings) -> Load:
    num_tokens = max(row.concurrency * row.shape.num_tokens for row in settings.rows)
    num_tokens = max(num_tokens, _FIRST + _FIRST_OUTPUT)
    return Load(
        model=str(file),
        weights=turn.weights,
        num_threads=len(settings.cores),
        num_sequences=max(row.concurrency for row in settings.rows),
        num_tokens=num_tokens,
        longest=max(_FIRST + _FIRST_OUTPUT, *(row.shape.num_tokens for row in settings.rows)),
        kv_bytes=num_tokens * shape.kv_bytes_per_token,
        pin=settings.pin,
    )


def _failed(turn: Turn, error: RunnerFailed) -> TurnResult:
    return TurnResult(
        engine=turn.engine.kind.name,
        model=turn.model,
        weights=turn.weights,
        repeat=turn.repeat,
        settings={},
        error=str(error),
    )


def _expect(answer: Message, kind: type[_Answer]) -> _Answer:
    if not isinstance(answer, kind):
        raise RunnerFailed(f"The runner answered {type(answer).__name__}, not {kind.__name__}.")
    return answer


def _by_size(rates: Mapping[str, float]) -> dict[int, float]:
    return {int(size): rate for size, rate in rates.items()}
