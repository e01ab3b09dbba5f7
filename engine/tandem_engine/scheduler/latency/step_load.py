"""The work of a step, in numbers that are known before it runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The work of one step, as `StepTimeModel` sees it."""

    num_tokens: int
    """Tokens of all rows."""
    num_rows: int
    """Sequences in the step."""
    chunk_context: float
    """Sum over the prompt rows of chunk · (start + chunk / 2): pairs of tokens that attend."""
    decode_context: int
    """Sum over the decode rows of the cached tokens."""
    num_scored: int = 0
    """Prompt tokens whose logits are computed, too: each costs what a row does."""
