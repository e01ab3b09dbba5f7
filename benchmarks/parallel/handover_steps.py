"""Steps to hand over: made by the engine's own scheduler and runner, with logits by chance."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step
from tandem_engine.device.registry import open_device
from tandem_engine.engine import Engine
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.pending_logits import Computed
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.scheduler.scheduler import Scheduler

BLOCK_SIZE: Final = 128
_VOCAB: Final = 64
_CHUNK: Final = 512
_WIDTH: Final = 4
_PREFILL_TOKENS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Recorded:
    """One step as its executor is given it."""

    step: Step
    """Its copies, and what would be pickled."""
    removed: Sequence[str]
    batch: FlatBatch | None


@dataclass(slots=True)
class _Recorder:
    """An executor that keeps what it is given."""

    steps: list[Recorded] = field(default_factory=list)
    vocab_size: int = _VOCAB
    num_stages: int = 1
    heeds_num_top: bool = False
    _removed: Sequence[str] = ()
    _generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def remove(self, sequence_ids: Sequence[str]) -> None:
        """Note sequences that are over."""
        self._removed = sequence_ids

    def copy(self, step: Step) -> None:
        """Note a step, before its batch comes; one without rows is dropped: it moves no blocks."""
        if self.steps and self.steps[-1].batch is None:
            self.steps.pop()
        self.steps.append(Recorded(step, self._removed, None))
        self._removed = ()

    def begin(self, batch: FlatBatch) -> Computed:
        """Note the batch."""
        return Computed(self.forward(batch))

    def reading(self) -> AbstractContextManager[None]:
        """Return none of its own."""
        return nullcontext()

    def forward(self, batch: FlatBatch) -> Tensor:
        """Note the batch; return logits by chance."""
        last = self.steps.pop()
        self.steps.append(Recorded(last.step, last.removed, batch))
        return torch.randn((len(batch.yield_at), _VOCAB), generator=self._generator)


def record(case: str, num_rows: int, *, num_steps: int, context: int) -> tuple[list[Recorded], int]:
    """Return the steps of a case from the first prompt on, and how many of them set it up.

    Args:
        case: decode: all rows go on. mixed: the same, and a prompt chunk of 512 tokens in each
            step. beams: rows of searches of width 4, or fewer where there are not so many rows.
        num_rows: Rows that decode.
        num_steps: Steps behind those that set up.
        context: Tokens of the longest prompt; others are up to a block shorter.
    """
    rng = Random(0)  # noqa: S311  # load, not secrets
    width = min(_WIDTH, num_rows) if case == "beams" else 1
    max_new = num_steps + 64
    recorder = _Recorder()
    # In seconds: a batch that forms waits for it.
    clock = count()
    engine = _engine(recorder, num_rows, context + max_new)
    for number in range(num_rows // width):
        length = context - rng.randrange(BLOCK_SIZE)
        engine.add(_request(f"row-{number}", length, max_new, rng, width=width))
    set_up = _until_all_decode(engine, recorder, num_rows, clock)
    if case == "mixed":
        # Not before: in chunks of 512 the first of many rows would end before the last decodes.
        engine.reconfigure(_schedule(num_rows, is_mix=True))
    for number in range(num_steps):
        if case == "mixed" and number % max(1, context // _CHUNK) == 0:
            engine.add(_request(f"prompt-{number}", context, 1, rng))
        _step(engine, clock)
    return recorder.steps, set_up


def _engine(recorder: _Recorder, num_rows: int, longest: int) -> Engine:
    num_blocks = (num_rows + 4) * (-(-longest // BLOCK_SIZE) + 2)
    runner = ModelRunner(recorder, runtime=open_device("cpu"), block_size=BLOCK_SIZE)
    schedule = _schedule(num_rows, is_mix=False)
    return Engine(Scheduler(schedule, BlockPool(num_blocks, BLOCK_SIZE)), runner)


def _schedule(num_rows: int, *, is_mix: bool) -> ScheduleConfig:
    return ScheduleConfig(
        template_type="Mix" if is_mix else "Standard",
        max_batch_size=num_rows + 1,
        max_prefill_tokens=_PREFILL_TOKENS,
        cache_block_size=BLOCK_SIZE,
        split_fuse=SplitFuseConfig(
            # It has to be a multiple of 16.
            split_chunk_tokens=-(-num_rows // 16) * 16 + _CHUNK,
            split_start_batch_size=0,
        ),
    )


def _request(name: str, length: int, max_new: int, rng: Random, *, width: int = 1) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=tuple(rng.choices(range(_VOCAB), k=length)),
        sampling=SamplingParams(
            max_tokens=max_new,
            temperature=0.0,
            use_beam_search=width > 1,
            n=width,
        ),
        max_new_tokens=max_new,
        seeds=tuple(range(width)),
        sequence_ids=tuple(f"{name}.{beam}" for beam in range(width)) if width > 1 else (),
    )


def _until_all_decode(
    engine: Engine, recorder: _Recorder, num_rows: int, clock: Iterator[int]
) -> int:
    """Step until all rows decode; return the number of steps."""
    while not recorder.steps or recorder.steps[-1].step.num_decodes < num_rows:
        _step(engine, clock)
    return len(recorder.steps)


def _step(engine: Engine, clock: Iterator[int]) -> None:
    engine.step(lambda: next(clock))
