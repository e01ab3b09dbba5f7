"""The data of the step loop: a step to compute, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tandem_engine.api.drafts import DraftLimits, Proposals
from tandem_engine.api.output import FinishReason, PromptLogprobs, TokenLogprob
from tandem_engine.api.request import Request


class BlockCopy(NamedTuple):
    """The content of one KV block goes into another; which kinds of block says the field."""

    source: int
    target: int


class BeamMove(NamedTuple):
    """The move of one beam: it takes another beam's tokens (or its own) and one more."""

    parent: str
    """Id of the sequence whose tokens it takes over, as they were before the move."""
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass, as columns: entry i of each of the first four belongs to row i.

    Prefill, chunk and decode are the same thing: compute so many more tokens of a sequence. A row
    whose known tokens are all computed by the step yields tokens.

    Before anything is computed the runner makes the moves of beams, then copies blocks: out to the
    host, in from the host, and on the device, in this order. No block is the target of two copies,
    and none is read in a list after it was written in the same one.

    The copies are a transaction of their own. Where they are made, a step that fails loses its rows
    alone; where they are not, or it is not known, it loses `moved` too, whose blocks then hold the
    content of others.
    """

    sequence_ids: Sequence[str] = ()
    """The rows; decode rows come first."""
    num_tokens: Sequence[int] = ()
    """Tokens to compute now, drafts included."""
    starts: Sequence[int] = ()
    """Tokens that are in the KV cache already."""
    block_tables: Sequence[Sequence[int]] = ()
    """Ids of KV blocks, in the order of the tokens. Rows share blocks that none of them writes."""
    num_decodes: int = 0
    """So many rows, the first ones, go on with their output; the others compute their prompt."""
    drafts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Sequence id → guesses for its next tokens, one at least: the last tokens of the row."""
    swapped_out: Sequence[BlockCopy] = ()
    """KV block → host block."""
    swapped_in: Sequence[BlockCopy] = ()
    """Host block → KV block."""
    copied: Sequence[BlockCopy] = ()
    """KV block → KV block: a sequence is about to write into a block that others read."""
    moved: Sequence[str] = ()
    """Sequences whose blocks the copies fill, and that are no rows: swapped out or in."""
    beam_moves: Mapping[str, BeamMove] = field(default_factory=dict)
    """Sequence id → its move since the last step; all moves happen at once."""
    preempted: tuple[str, ...] = ()
    """Sequences that lost their blocks in this step and wait to be computed again."""
    expected_s: float | None = None
    """Seconds that it is predicted to take; None: it is empty, or nothing was learnt from yet."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole batch."""
        return sum(self.num_tokens)


class SampledToken(NamedTuple):
    """A token that a row yielded."""

    token_id: int
    logprob: TokenLogprob | None = None


class Candidate(NamedTuple):
    """A token that may continue a beam."""

    token_id: int
    logprob: float
    """After log-softmax of the logits, and then bias and penalties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The runner's result of a step.

    A row yields when all its known tokens are computed. The row that completes the prompt of a
    request with several sequences yields the first token of each of them.
    """

    tokens: Mapping[str, Sequence[SampledToken]] = field(default_factory=dict)
    """Sequence id → its new tokens: one, and one more for each draft that was right."""
    candidates: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    """Sequence id of a yielding beam → its likeliest continuations, best first: 2 · width of them,
    or width and one for each end token, if that is more. A beam has no entry in `tokens`: which of
    them goes on is the scheduler's choice."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Sequence id → why this row, and no other, came to nothing."""
    prompt_logprobs: Mapping[str, PromptLogprobs] = field(default_factory=dict)
    """Sequence id → those of the part of its prompt that the step has computed: each part once, in
    order, however often it is computed. The last part comes with the first token or before."""


class Advance(NamedTuple):
    """One sequence got more tokens, perhaps its last."""

    sequence_id: str
    tokens: Sequence[SampledToken]
    finish_reason: FinishReason | None = None


class StepHandle(Protocol):
    """A step that was submitted and may still be computed."""

    @property
    def has_failed(self) -> bool:
        """True if it is known to have failed, so that no step may count on its tokens."""

    def result(self) -> StepResult:
        """Wait for the result.

        An exception means that its copies may not be made: its rows are lost, and `Step.moved`. A
        step that fails after its copies reports it in `StepResult.failed`. With ReplicaLost no
        other step can be computed either.
        """


class Runner(Protocol):
    """Turns a step into tokens; the only thing that the step loop knows of tensors."""

    def add(self, request: Request) -> None:
        """Learn the prompt and the sampling of a request before its first step."""

    def run(self, step: Step) -> StepResult:
        """Compute `step`; as to exceptions, see `StepHandle.result`."""

    def submit(self, step: Step) -> StepHandle:
        """Begin to compute `step`, after all that were submitted before; do not wait for it.

        One step may be submitted while the one before it is computed, if the rows of that one yield
        one token each. Its rows then count on those tokens: the device puts them in.
        """

    def propose(self, limits: DraftLimits) -> Proposals:
        """Guess how sequences go on, behind the tokens that are known."""

    def remove(self, sequence_id: str) -> None:
        """Forget a sequence; unknown ids are ignored. It may be in steps that are computed."""

    def close(self) -> None:
        """Give back what `submit` needs; nothing is computed any more."""
