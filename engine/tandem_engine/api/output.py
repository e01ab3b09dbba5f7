"""What the engine gives back: pieces of text with the tokens that they came from."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
"""stop: an end token, a stop id or a stop string. length: max_tokens or maxSeqLen was reached."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability after temperature-free softmax of the raw logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest token ids with their log-probabilities, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step (or several, if the reader was slow) added to one choice of a request."""

    index: int
    """Choice, 0 … n−1."""
    text: str
    """New text; may be empty while a character or a possible stop string is incomplete."""
    token_ids: tuple[int, ...]
    """New tokens."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry a new token when log-probabilities were asked for, else empty."""
    finish_reason: FinishReason | None = None
    """Set in the last output of a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's inner state at one moment, as data."""

    num_running: int
    num_waiting: int
    num_kv_blocks: int
    num_free_kv_blocks: int
    num_preemptions: int
    """Since the start."""
