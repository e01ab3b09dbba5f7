"""Outputs of the engine: pieces of text with the tokens that they came from."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from tandem_engine.api.drafts import DraftMethod

FinishReason = Literal["stop", "length"]
"""stop: an end token, a stop id or a stop string. length: max_tokens or maxSeqLen was reached."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability after temperature-free softmax of the raw logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest token ids with their log-probabilities, best first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptLogprobs:
    """Log-probabilities of tokens of a prompt, each given those before it.

    A prompt's first token has none. Numbers are kept in arrays: a prompt has thousands of them.
    """

    token_ids: tuple[int, ...]
    """The tokens."""
    logprobs: Sequence[float]
    """[tokens]: like `TokenLogprob.logprob`."""
    ranks: Sequence[int]
    """[tokens]: 1 where no token is likelier, 2 where one is, and so on."""
    num_top: int
    """Likeliest tokens in the place of each."""
    top_ids: Sequence[int]
    """[tokens · num_top]: those of the first token, best first, then those of the second …"""
    top_logprobs: Sequence[float]
    """[tokens · num_top]: their log-probabilities."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def top(self, at: int) -> tuple[tuple[int, float], ...]:
        """The likeliest token ids in the place of one, with their log-probabilities."""
        own = slice(at * self.num_top, (at + 1) * self.num_top)
        return tuple(zip(self.top_ids[own], self.top_logprobs[own], strict=True))


def join_prompt_logprobs(parts: Sequence[PromptLogprobs]) -> PromptLogprobs:
    """Parts of one prompt in their order, as one; there must be one at least."""
    return PromptLogprobs(
        token_ids=tuple(chain.from_iterable(part.token_ids for part in parts)),
        logprobs=array("f", chain.from_iterable(part.logprobs for part in parts)),
        ranks=array("i", chain.from_iterable(part.ranks for part in parts)),
        num_top=parts[0].num_top,
        top_ids=array("i", chain.from_iterable(part.top_ids for part in parts)),
        top_logprobs=array("f", chain.from_iterable(part.top_logprobs for part in parts)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """New text and tokens of one choice, from one step or several if the reader was slow."""

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
    prompt_logprobs: PromptLogprobs | None = None
    """In the first output of each choice, where they were asked for: of all tokens of the prompt
    but the first. None also where the prompt has no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Draft tokens that were checked, since the start."""

    num_drafted: int
    accepted: tuple[int, ...]
    """Those that were right, by their place: the first draft of a row, the second …"""

    @property
    def num_accepted(self) -> int:
        """Those that were right."""
        return sum(self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's inner state at one moment, as data."""

    num_running: int
    """Sequences that hold KV blocks."""
    num_waiting: int
    """Sequences that wait for KV blocks or a row of the batch."""
    num_kv_blocks: int
    num_free_kv_blocks: int
    """Blocks without a holder, those that are cached for their content included."""
    num_preemptions: int
    """Times that a sequence lost its blocks, since the start."""
    num_swapped: int = 0
    """Sequences whose blocks are in host memory."""
    num_cached_kv_blocks: int = 0
    """Free blocks that are kept for their content."""
    num_host_blocks: int = 0
    num_free_host_blocks: int = 0
    num_swaps: int = 0
    """Those of the preemptions that went to host memory."""
    num_queried_tokens: int = 0
    """Tokens of all sequences that were admitted, since the start."""
    num_hit_tokens: int = 0
    """Those of them that the prefix cache had."""
    num_evicted_blocks: int = 0
    """Cached blocks that were evicted, since the start."""
    drafts: Mapping[DraftMethod, DraftCounts] = field(default_factory=dict)
    """By the method that proposed them; none: there is no speculation."""
    tpot_pace: float | None = None
    """Share of the TPOT target that decode rows are paced by; None: there is no target."""
