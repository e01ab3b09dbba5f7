"""Records of the last steps in a ring buffer, and sums since the start.

A record keeps the inputs of the step; explain.py makes words for people of it on request.
"""

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from tandem_engine.api.step import Step
from tandem_engine.api.steps import MAX_KEPT_STEPS
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder

# Four bytes: a sequence has at most some millions of tokens.
_COUNT: Final = "i"


@dataclass(slots=True, eq=False, kw_only=True)
class StepRecord:
    """One step."""

    number: int
    """Steps before it, empty ones included."""
    started: float
    """Seconds."""
    ended: float = inf
    """Seconds; inf while it is computed."""
    step: Step
    load: StepLoad
    token_budget: int
    """Tokens that the strategy allowed; 0: it has no such limit."""
    max_token_budget: int
    """Upper bound of the budget; 0: there is none."""
    predicted_s: float | None
    """Predicted duration; None: the step is empty."""
    num_waiting: int
    num_swapped: int
    blocked_by: Reason | None
    """The reason that the first waiting sequence is not in it; None: none waits."""
    first: str | None
    """Id of that sequence; None: none waits, or it is not known."""
    first_needs: int
    """Blocks that it needs: those that others share with it, and those that stay free, included."""
    num_free_blocks: int
    """Blocks that had no holder when the step was built, in the dp rank that had most of them."""
    skipped: tuple[tuple[str, Reason], ...]
    """Sequences that lost their turn, and why."""
    known: tuple[int, ...]
    """Of the rows that work on their prompt: tokens that each had to have computed in all."""
    hits: Mapping[str, int]
    """Sequences that were admitted in this step → tokens that the prefix cache had."""
    swapped: tuple[str, ...]
    """Sequences that lost their blocks to the host."""
    wake_at: float
    drafting_s: float = 0.0
    """Seconds before it in which drafts were proposed."""
    num_accepted: int = 0
    """Drafts that were right; known when it has ended."""

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.ended - self.started


@dataclass(slots=True, eq=False)
class OpenStep:
    """A step whose results are not there yet."""

    record: StepRecord
    rows: list[Sequence]
    is_reserved: bool = False
    """True once its rows are counted, but for their tokens."""


class Records:
    """The last steps, and what they add up to.

    One thread writes. Any may read meanwhile: a step has a slot in a list of fixed length, and
    a slot that a later step has taken has another number.
    """

    def __init__(self) -> None:
        self._ring: list[StepRecord | None] = [None] * MAX_KEPT_STEPS
        # Steps that are computed, or wait for it, with their rows.
        self._open: deque[OpenStep] = deque()
        self._number = 0
        self._noted_at: float | None = None
        self.num_recomputed = 0
        """Times that a sequence lost its blocks and what was computed, since the start."""
        self.num_swapped = 0
        """Times that a sequence was swapped out, since the start."""
        self.waited_s: dict[Reason, float] = dict.fromkeys(Reason, 0.0)
        """Request-seconds spent waiting by what they were spent on, since the start."""

    @property
    def last(self) -> StepRecord | None:
        """The newest one."""
        return self._ring[(self._number - 1) % MAX_KEPT_STEPS]

    @property
    def lacked_blocks(self) -> bool:
        """True if the queue was blocked for want of blocks in the last step."""
        return self.last is not None and self.last.blocked_by == Reason.NO_BLOCKS

    def since(self, number: int = 0, limit: int = MAX_KEPT_STEPS) -> list[StepRecord]:
        """The newest `limit` records that are kept, from step `number` on; on any thread."""
        end = self._number
        numbers = range(max(number, end - min(limit, MAX_KEPT_STEPS), 0), end)
        slots = ((at, self._ring[at % MAX_KEPT_STEPS]) for at in numbers)
        return [record for at, record in slots if record is not None and record.number == at]

    def open(
        self,
        builder: StepBuilder,
        load: StepLoad,
        *,
        predicted_s: float | None,
        has_learnt: bool = False,
    ) -> Step:
        """Note a step that is about to be computed, and return it as data.

        Args:
            builder: Has its rows.
            load: Of it.
            predicted_s: Predicted duration; None: it is empty.
            has_learnt: True if the prediction is of measured steps.
        """
        self._note_waiting(builder)
        step = builder.build(predicted_s if has_learnt else None)
        self.num_recomputed += len(builder.preemptor.recomputed)
        self.num_swapped += len(builder.preemptor.swapped)
        record = self._ring[self._number % MAX_KEPT_STEPS] = StepRecord(
            number=self._number,
            started=builder.now,
            step=step,
            load=load,
            token_budget=builder.token_budget,
            max_token_budget=builder.max_token_budget,
            predicted_s=predicted_s,
            drafting_s=builder.drafting_s,
            num_waiting=len(builder.queues.waiting),
            num_swapped=len(builder.queues.swapped),
            blocked_by=builder.waits.blocked_by,
            first=None if builder.waits.first is None else builder.waits.first.sequence_id,
            first_needs=builder.first_needs,
            num_free_blocks=builder.blocks.most_free,
            known=tuple(row.num_tokens for row in builder.rows.prefills),
            hits=builder.hits,
            skipped=tuple(builder.waits.skipped),
            swapped=tuple(builder.preemptor.swapped),
            wake_at=builder.waits.wake_at,
        )
        self._open.append(OpenStep(record, [*builder.rows.decodes, *builder.rows.prefills]))
        self._number += 1
        return step

    @property
    def newest_open(self) -> "OpenStep | None":
        """The newest step that is not closed."""
        return self._open[-1] if self._open else None

    def close(self, now: float) -> "OpenStep":
        """Note that the oldest open step is computed; return it."""
        if not self._open:
            raise RuntimeError("No step was opened before this one was closed; this is a bug.")
        closed = self._open.popleft()
        record = closed.record
        record.ended = now
        if self._open:
            # The step that was submitted meanwhile has waited for this one.
            self._open[0].record.started = now
        # The tables are not read any more, and would keep the block ids of ended sequences. The
        # counts of hundreds of steps are kept: as numbers, not as an object for each.
        record.step = replace(
            record.step, block_tables=(), starts=array(_COUNT, record.step.starts)
        )
        return closed

    def _note_waiting(self, builder: StepBuilder) -> None:
        """Charge the time since the last step to the reason that blocked the queue in it."""
        last, now = self.last, builder.now
        if last is not None and last.blocked_by is not None and self._noted_at is not None:
            self.waited_s[last.blocked_by] += last.num_waiting * max(0.0, now - self._noted_at)
        # An async step was scheduled for a later time than now.
        self._noted_at = now if self._noted_at is None else max(now, self._noted_at)
