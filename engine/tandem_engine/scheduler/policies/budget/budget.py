"""A token budget of SplitFuse steps: its input, and the one that is constant."""

from dataclasses import dataclass
from math import inf
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """The step before its prompt chunks are chosen: the decode rows are in it already."""

    max_token_budget: int
    """Most tokens of the step, decode rows included: splitChunkTokens."""
    num_decodes: int = 0
    """Decode rows of the step."""
    decode_tokens: int = 0
    """Their tokens, drafts included."""
    decode_context: int = 0
    """Tokens that they have in the cache."""
    slack_s: float = inf
    """Seconds until they should have their next tokens (`Pace.slack`); inf: there is no
    decode row, or no TPOT target."""
    prompt_tokens: int = 0
    """Uncomputed tokens of prompts that could use the budget; counting may stop at
    `max_token_budget`."""
    prompt_context: int = 0
    """Tokens in the cache where the chunk of the first prompt in line starts."""
    prompt_wait_s: float = 0.0
    """Seconds since the first prompt in line got its last tokens, or since it arrived."""


class Budget(Protocol):
    """Chooses the size of every step."""

    def choose(self, view: BudgetView) -> int:
        """Tokens of the step, decode rows included; from 0 to `max_token_budget`."""


class FixedBudget:
    """splitChunkTokens for every step: SplitFuse as MindIE has it."""

    def choose(self, view: BudgetView) -> int:
        """Return the maximum."""
        return view.max_token_budget
