"""The currency of the step loop: what to compute, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem_engine.api.output import FinishReason, TokenLogprob
from tandem_engine.api.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass. The mapping `num_tokens` is the decision, the rest is its context.

    Prefill, chunk and decode are the same thing: compute so many more tokens of a request.
    A request whose known tokens are all computed by the step yields one new token.
    """

    num_tokens: Mapping[str, int] = field(default_factory=dict)
    """Request id → tokens to compute now; decode rows come first."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Request id → tokens of it that stand in the KV cache already."""
    block_tables: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Request id → ids of its KV blocks, in the order of its tokens."""
    preempted: tuple[str, ...] = ()
    """Requests that lost their blocks in this round and wait to be computed again."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole batch."""
        return sum(self.num_tokens.values())


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token that a row yielded."""

    token_id: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the runner made of a step."""

    tokens: Mapping[str, SampledToken] = field(default_factory=dict)
    """Request id → its new token, for each row whose known tokens are all computed."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Request id → why this row, and no other, came to nothing."""


@dataclass(frozen=True, slots=True)
class Advance:
    """One request got one more token, perhaps its last."""

    request_id: str
    token: SampledToken
    finish_reason: FinishReason | None = None


class Runner(Protocol):
    """Turns a step into tokens; the only thing that the step loop knows of tensors."""

    def add(self, request: Request) -> None:
        """Learn the prompt and the sampling of a request before its first step."""

    def run(self, step: Step) -> StepResult:
        """Compute `step`. An exception means that all of its rows are lost."""

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
