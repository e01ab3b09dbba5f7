"""Explanations of the last steps for people: plain data behind `GET /debug/steps`."""

from dataclasses import dataclass
from typing import Final, Literal

RowKind = Literal["decode", "chunk"]
"""decode: the next token of an output. chunk: a part, or all, of what a prompt lacks."""

MAX_KEPT_STEPS: Final = 512
"""Steps that an engine keeps; older ones are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExplanation:
    """The row of one sequence in a step."""

    sequence_id: str
    kind: RowKind
    num_tokens: int
    """Tokens that were computed for it, drafts included."""
    start: int
    """Tokens that stood in the KV cache before: a chunk goes from here to start + num_tokens."""
    num_drafts: int = 0
    """Those of its tokens that a draft supplied."""
    num_known: int | None = None
    """Chunks: tokens that it had to have computed in all; None: not recorded."""
    num_hit: int | None = None
    """Tokens that the prefix cache had, in the step that admitted it; None in every other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitExplanation:
    """The reason that one sequence is not in a step."""

    sequence_id: str | None
    """None: the first in line, whose id was not recorded."""
    reason: str
    """The word that the metrics have as label `reason`."""
    text: str
    """The same as a sentence, with the figures that are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExplanation:
    """One step: its budget, its rows, and the sequences that had to wait."""

    number: int
    """Steps before it, since the start of the engine; empty ones count."""
    started: float
    """Start in seconds since 1970, if the caller gave the clock's epoch."""
    seconds: float | None
    """Its duration; None: it is still being computed."""
    predicted_s: float | None
    """Its predicted duration; None: nothing was predicted."""
    token_budget: int
    """Tokens that it may have; 0: its strategy has no such limit."""
    max_token_budget: int | None
    """The most that the budget may be (splitChunkTokens); None: there is no such bound."""
    num_decode_tokens: int
    num_prefill_tokens: int
    num_decodes: int
    """Sequences that went on with their output; none and no chunk: its batch was forming."""
    num_drafts: int
    """Tokens that drafts supplied."""
    num_accepted: int = 0
    """Those of them that were right; 0 while it is computed."""
    rows: tuple[RowExplanation, ...]
    """The sequences in it, decodes first, unless only the chunks were asked for."""
    recomputed: tuple[str, ...]
    """Sequences that lost their KV blocks, and what was computed with them."""
    swapped: tuple[str, ...]
    """Sequences whose KV blocks went to the host."""
    blocked_by: WaitExplanation | None
    """The reason that the first waiting sequence was not taken; None: none waits."""
    skipped: tuple[WaitExplanation, ...]
    """Those that lost their turn while others did not."""
    num_waiting: int
    """Sequences without KV blocks, the first in line among them."""
    num_swapped: int
    """Sequences whose KV blocks are in host memory."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return self.num_decode_tokens + self.num_prefill_tokens

    @property
    def num_behind(self) -> int:
        """Sequences that wait behind the first in line."""
        return max(0, self.num_waiting - 1)
