"""The sides of the benchmark: engines over the same weights, without drafts and with each method.

All are in one process and take turns, so they have the same threads and the same memory for their
weights; each has a KV cache of its own.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.engine import Engine
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.runner.draft_model import DraftModel
from tandem_engine.runner.executor import LocalExecutor
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.speculation.ngram_drafter import NgramDrafter

BLOCK_SIZE: Final = 64
_LONGEST: Final = 256
"""Tokens of a question and its answer; the caches of all sides must fit side by side."""
OFF: Final = "off"
METHODS: Final = (OFF, "ngram", "draft", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of all sides."""

    decoder: Decoder
    draft: Decoder
    runtime: DeviceRuntime
    token_price: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Result of one side with one batch of requests."""

    num_tokens: int
    """Tokens that decode steps gave."""
    seconds: float
    """Of decode steps, with the drafting before them; steps with prompts are left out."""
    tokens: dict[str, tuple[int, ...]]
    """Answers, which must be those of the other sides."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of decode steps."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


class Side:
    """An engine with one method.

    Args:
        method: One of METHODS.
        models: Those of all sides.
        num_rows: Sequences at once.
        max_draft_tokens: Drafts of a sequence in a step, at most.
    """

    def __init__(
        self, method: str, models: Models, *, num_rows: int, max_draft_tokens: int
    ) -> None:
        self.method = method
        self.base = OFF
        """Name of the side without drafts."""
        num_blocks = num_rows * (-(-_LONGEST // BLOCK_SIZE))
        speculation = _speculation(method, max_draft_tokens)
        decoder = models.decoder
        kv_cache = allocate_kv_cache(
            decoder.cache_layout(BLOCK_SIZE), num_blocks=num_blocks, device=decoder.device
        )
        draft_model = None
        if "draft" in speculation.methods:
            draft_model = DraftModel(
                models.draft, runtime=models.runtime, num_blocks=num_blocks, block_size=BLOCK_SIZE
            )
        runner = ModelRunner(
            LocalExecutor(decoder, kv_cache),
            runtime=models.runtime,
            block_size=BLOCK_SIZE,
            drafter=NgramDrafter() if "ngram" in speculation.methods else None,
            draft_model=draft_model,
        )
        schedule = ScheduleConfig(
            cache_block_size=BLOCK_SIZE, max_batch_size=num_rows, max_prefill_batch_size=num_rows
        )
        self._engine = Engine(
            Scheduler(
                schedule,
                BlockPool(num_blocks, BLOCK_SIZE),
                speculation=speculation,
                draft_price=models.token_price,
            ),
            runner,
        )

    def run(self, requests: Sequence[Request]) -> Turn:
        """Answer requests that come at once."""
        for request in requests:
            self._engine.add(request)
        tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        num_tokens, seconds = 0, 0.0
        while self._engine.has_work:
            before = time.perf_counter()
            progress = self._engine.step(time.perf_counter)
            took = time.perf_counter() - before
            got = 0
            for advance in progress.advances:
                tokens[advance.sequence_id] += [token.token_id for token in advance.tokens]
                got += len(advance.tokens)
            step = progress.step
            if step.num_decodes == len(step.sequence_ids):
                num_tokens += got
                seconds += took
        return Turn(num_tokens, seconds, {name: tuple(ids) for name, ids in tokens.items()})

    def accepted_share(self) -> float | None:
        """Return the share of drafts that were right so far; None: there was none."""
        drafts = self._engine.stats().drafts.values()
        drafted = sum(each.num_drafted for each in drafts)
        return sum(each.num_accepted for each in drafts) / drafted if drafted else None

    def close(self) -> None:
        """End what computes."""
        self._engine.close()


class TakesTurns(Protocol):
    """What answers requests."""

    def run(self, requests: Sequence[Request]) -> Turn:
        """Answer requests that come at once."""


S = TypeVar("S", bound=TakesTurns)


def take_turns(
    sides: Sequence[S], batches: Iterator[Sequence[Request]], rounds: int
) -> Iterator[tuple[int, S, Turn]]:
    """Let all sides answer the same requests, each round others, and each round another first."""
    for number in range(rounds):
        batch = next(batches)
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            yield number, side, side.run(batch)


def _speculation(method: str, max_draft_tokens: int) -> SpeculationConfig:
    if method == OFF:
        return SpeculationConfig()
    # The model is handed over, and its checkpoint is not read again.
    path = "draft" if method in {"draft", "auto"} else None
    return SpeculationConfig.model_validate(
        {"method": method, "draft_path": path, "max_draft_tokens": max_draft_tokens}
    )
