"""The interface of strategies, and the parts that they share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tandem_engine.scheduler.orders import Order
from tandem_engine.scheduler.pace import Pace
from tandem_engine.scheduler.policies.budget import Budget
from tandem_engine.scheduler.policies.stages import StagePolicy
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """The policies that a strategy uses."""

    order: Order
    """Order of prompts."""
    stages: StagePolicy
    """Choice between prefill and decode, where a step is one of the two."""
    budget: Budget
    """Tokens of a step, where it is both."""
    pace: Pace
    """Deadlines of decode rows."""
    always_splits: bool
    """True if prompts are cut regardless of splitStartBatchSize: there is a latency target."""


class Strategy(Protocol):
    """Fills a step: the one call that the scheduling loop makes."""

    def fill(self, builder: StepBuilder) -> None:
        """Take sequences into the step until nothing more fits."""


def finish_prompts(builder: StepBuilder, order: Order) -> None:
    """Take all that is left of prompts that are begun."""
    for sequence in builder.unfinished_prompts(order):
        builder.prefill(sequence, sequence.num_uncomputed)


def start_whole_prompts(
    builder: StepBuilder, may_join: Callable[[Sequence], bool] = lambda _: True
) -> None:
    """Start waiting sequences with all of their prompt in one step.

    maxPrefillTokens closes the batch; a prompt longer than that runs alone.

    Args:
        builder: Builds the step.
        may_join: True for a sequence of the batch that is formed.
    """

    def take(sequence: Sequence) -> Reason | None:
        if not may_join(sequence):
            return Reason.BATCH_NOT_OVER
        tokens = builder.rows.prefill_tokens + builder.uncomputed(sequence)
        if builder.rows.prefill_tokens and tokens > builder.schedule.max_prefill_tokens:
            return Reason.TOKENS
        return builder.start(sequence, lambda started: started.num_uncomputed)

    builder.admit_waiting(take)


def decode(builder: StepBuilder) -> None:
    """Take the next token of all decoding sequences, and bring back swapped ones."""
    builder.decode(builder.limits.max_batch_size)
    builder.resume(builder.limits.max_batch_size)
