"""What the strategies have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tandem_engine.scheduler.policies.budget import Budget, Pace
from tandem_engine.scheduler.policies.orders import Order
from tandem_engine.scheduler.policies.stages import StagePolicy
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.step_builder import StepBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """What a strategy may ask for advice."""

    order: Order
    """Which prompts go first."""
    stages: StagePolicy
    """Whether a prefill or a decode step is next, where a step is one of the two."""
    budget: Budget
    """How many tokens a step may have, where it is both."""
    pace: Pace
    """When decode rows need their next tokens."""
    always_splits: bool
    """Whether prompts are cut whatever the gate says: a latency is promised."""


class Strategy(Protocol):
    """Fills a step: the one call that the scheduling loop makes."""

    def fill(self, step: StepBuilder) -> None:
        """Take sequences into the step until nothing more fits."""


def finish_prompts(step: StepBuilder, order: Order) -> None:
    """Take all that is left of prompts that are begun."""
    for sequence in step.unfinished_prompts(order):
        step.prefill(sequence, sequence.num_uncomputed)


def start_whole_prompts(
    step: StepBuilder, has_place: Callable[[Sequence], bool] = lambda _: True
) -> None:
    """Start waiting sequences with all of their prompt in one step.

    maxPrefillTokens closes the batch; a prompt longer than that runs alone.

    Args:
        step: The step.
        has_place: Whether a sequence belongs to the batch that is formed.
    """

    def take(sequence: Sequence) -> Reason | None:
        if not has_place(sequence):
            return Reason.BATCH_NOT_OVER
        tokens = step.rows.prefill_tokens + step.uncomputed(sequence)
        if step.rows.prefill_tokens and tokens > step.schedule.max_prefill_tokens:
            return Reason.TOKENS
        return step.start(sequence, lambda started: started.num_uncomputed)

    step.admit_waiting(take)


def decode(step: StepBuilder) -> None:
    """Take the next token of all that decode, and bring back who was swapped out."""
    step.decode(step.limits.max_batch_size)
    step.resume(step.limits.max_batch_size)
