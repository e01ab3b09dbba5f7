"""Drafts on their way from those who guess to the step that checks them; plain data."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

DraftMethod = Literal["ngram", "draft"]
"""ngram: looked up in texts. draft: computed by a smaller model."""


class Draft(NamedTuple):
    """Guesses for the next tokens of a sequence."""

    method: DraftMethod
    """Their origin."""
    token_ids: Sequence[int]
    """One at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLimits:
    """Drafts that are worth being checked in the next step.

    A sequence may be in both mappings: then the draft model guesses where no text has a guess.
    """

    ngram: Mapping[str, int] = field(default_factory=dict)
    """Sequence id → tokens at most, 1 or more, that are looked up."""
    draft: Mapping[str, int] = field(default_factory=dict)
    """Sequence id → tokens at most, 1 or more, by the draft model."""
    num_tokens: int = 0
    """Tokens of prompts and answers that the draft model may catch up on meanwhile."""

    def __bool__(self) -> bool:
        return bool(self.ngram) or bool(self.draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """Drafts for the next step, and what they took."""

    drafts: Mapping[str, Draft] = field(default_factory=dict)
    """Sequence id → its draft; one without a guess is left out."""
    num_computed: int = 0
    """Tokens that the draft model computed for them."""
    num_passes: int = 0
    """Its forward passes; 0: nothing was computed."""
    has_caught_up: bool = False
    """True if a pass computed more than the last tokens of a sequence, such as its prompt."""
    never: Collection[str] = ()
    """Sequences that the draft model cannot guess for, now and later."""
    has_failed: bool = False
    """True if there is no draft model any more."""

    def __bool__(self) -> bool:
        return bool(self.drafts)


NO_LIMITS: Final = DraftLimits()
NO_PROPOSALS: Final = Proposals()
