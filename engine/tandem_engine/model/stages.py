"""A decoder's layers as stages between collectives, for ranks that share a model.

    attention │ collective │ feed-forward │ collective │ …

The two row-parallel projections of a layer give each rank a part of a sum. Where the ranks of tp
share layers only, an all-reduce completes it, and norms are computed by all of them. With sequence
parallelism (sp) each rank norms rows of its own: a reduce-scatter takes the all-reduce's place,
and an all-gather follows the norm. Both move as many bytes, and the norms take 1 / tp of the time.

What is computed comes as a generator that yields each collective when its tensor is ready, and goes
on when it is done: an executor may so compute another batch meanwhile, and no model knows of it.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, assert_never

from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.packed_model import StepStages
from tandem_engine.kvcache.capacity import MAX_SCORED_ROWS
from tandem_engine.parallel.plan import RankPlan


class StageName(NamedTuple):
    """The stage in front of a collective; for timelines."""

    kind: str
    layer: int | None = None
    """Counted from the rank's first one; None: it is of no layer."""

    def __str__(self) -> str:
        return self.kind if self.layer is None else f"{self.kind} {self.layer}"


_EMBEDDING: Final = StageName("embedding")
_LOGITS: Final = StageName("logits")


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Add up the ranks' tensors, in place on all of them."""

    tensor: Tensor
    stage: StageName


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Add up the ranks' tensors, in place; each rank needs its own rows of the sum alone.

    Rows are shared out evenly: rank r of n has the r-th of n equal parts.
    """

    tensor: Tensor
    stage: StageName


@dataclass(frozen=True, slots=True)
class AllGather:
    """Copy each rank's own rows, shared out as in ReduceScatter, into all ranks' tensors."""

    tensor: Tensor
    stage: StageName


@dataclass(frozen=True, slots=True)
class GatherColumns:
    """Put the ranks' tensors side by side, on the first rank."""

    tensor: Tensor
    stage: StageName
    num_columns: int
    """Columns to keep of all; those behind are padding."""


Collective = AllReduce | ReduceScatter | AllGather | GatherColumns
Stages = Generator[Collective, Tensor | None, Tensor | None]
"""Yields collectives, is sent the result of GatherColumns, and returns what a stage gives."""


class Collectives(Protocol):
    """Collectives among the ranks that share layers: tp. All of them call the same in one order."""

    def all_reduce(self, tensor: Tensor) -> None:
        """See `AllReduce`."""

    def reduce_scatter(self, tensor: Tensor) -> None:
        """See `ReduceScatter`."""

    def all_gather(self, tensor: Tensor) -> None:
        """See `AllGather`."""

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:
        """See `GatherColumns`; None on other ranks than the first."""


def drive(stages: Stages, collectives: Collectives) -> Tensor | None:
    """Compute all stages, each collective when it comes; return what the last one gives."""
    result: Tensor | None = None
    try:
        while True:
            result = carry_out(stages.send(result), collectives)
    except StopIteration as end:
        given: Tensor | None = end.value
        return given
    finally:
        stages.close()


def carry_out(collective: Collective, collectives: Collectives) -> Tensor | None:
    """Carry out one collective; return the result of GatherColumns."""
    match collective:
        case AllReduce(tensor=tensor):
            collectives.all_reduce(tensor)
        case ReduceScatter(tensor=tensor):
            collectives.reduce_scatter(tensor)
        case AllGather(tensor=tensor):
            collectives.all_gather(tensor)
        case GatherColumns(tensor=tensor, num_columns=num_columns):
            return collectives.gather_columns(tensor, num_columns)
        case _:
            assert_never(collective)
    return None


class NoPeers:
    """Collectives of a rank that shares its layers with no other: none is ever asked for."""

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collectives`, as for all methods."""
        raise _no_peers(tensor)

    def reduce_scatter(self, tensor: Tensor) -> None:
        """Raise."""
        raise _no_peers(tensor)

    def all_gather(self, tensor: Tensor) -> None:
        """Raise."""
        raise _no_peers(tensor)

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:  # noqa: ARG002
        """Raise."""
        raise _no_peers(tensor)


def _no_peers(tensor: Tensor) -> Exception:
    shape = list(tensor.shape)
    return AssertionError(f"one rank has no peers to share {shape} with; this is a bug")


def own_rows(num_tokens: int, plan: RankPlan) -> slice:
    """The rows that a rank norms under sequence parallelism, of `padded_rows` in all."""
    each = padded_rows(num_tokens, plan) // plan.num_tp
    return slice(plan.tp_rank * each, (plan.tp_rank + 1) * each)


def padded_rows(num_tokens: int, plan: RankPlan) -> int:
    """Tokens, rounded up to what the ranks of tp can share evenly."""
    return -(-num_tokens // plan.num_tp) * plan.num_tp


def check_has_no_decodes(metadata: AttentionMetadata) -> None:
    """Make sure that a step may be computed with sequence parallelism.

    Raises:
        AssertionError: A row decodes. Such steps have so few rows that sharing them out costs
            more than it saves, and their latency is what users wait for.
    """
    if metadata.num_decode_rows:
        raise AssertionError(
            f"{metadata.num_decode_rows} rows of the step decode, but sequence parallelism is for "
            "prefill alone; this is a bug"
        )


class Scoring(Protocol):
    """Positions of a step whose next token is known: their logits are reduced slice by slice."""

    @property
    def num_rows(self) -> int:
        """How many; their rows of the logits come before those that are sampled from."""

    def score(self, rows: slice, logits: Tensor) -> None:
        """Reduce the logits of some of them: float32 [rows, vocabulary], overwritten afterwards."""


class ShareReducer(Protocol):
    """Makes less of a rank's share of the logits: what is enough to sample from."""

    @property
    def num_columns(self) -> int:
        """Columns of what it makes."""

    def reduce(self, logits: Tensor, first_id: int) -> Tensor:
        """Reduce float32 [rows, tokens of the share], of which `first_id` is the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """The part of a step that decides on its stages; the same on all ranks of tp."""

    num_logits: int
    """Rows of the logits, those that are scored not included."""
    vocab_size: int
    """Columns of them."""
    hidden: Tensor | None
    """Result of the pipeline stage before; None: this one embeds tokens."""
    rows: slice | None
    """The rank's own under sequence parallelism; None: it is not used."""
    scoring: Scoring | None = None
    """None: no position is scored."""
    reducer: ShareReducer | None = None
    """For rows that are sampled from; None: their logits are given as they are."""
    sums_are_whole: bool = False
    """True: the stages of a layer add up among ranks themselves."""

    @property
    def num_scored(self) -> int:
        """Positions that are scored."""
        return 0 if self.scoring is None else self.scoring.num_rows


def compute_stages(step: StepStages, plan: RankPlan, inputs: StageInputs) -> Stages:
    """All stages of one rank.

    Returns:
        Of the last pipeline stage, logits on the first rank of tp and None on others; of another
        one, the hidden states for the next: the rank's own rows of them under sp.
    """
    rows, last = inputs.rows, len(plan.layers) - 1
    yield from _entered(step, plan, inputs)
    for layer in range(len(plan.layers)):
        is_end = plan.is_last_stage and layer == last
        if is_end and rows is not None:
            # It goes on with the rows of the logits, which are few, and of any rank.
            step.leave(rows)
            yield AllGather(step.hidden, StageName("leave", layer))
            rows = None
        if rows is not None:
            step.attention_norm(layer, rows)
            yield AllGather(step.hidden, StageName("attention norm", layer))
        step.attention(layer, is_normed=rows is not None)
        if is_end and not inputs.num_logits and not inputs.num_scored:
            # K and V are written.
            return _no_logits(step, plan, inputs)
        if not inputs.sums_are_whole:
            yield from _completed(step, plan, rows, StageName("attention", layer))
        if rows is not None:
            step.mlp_norm(layer, rows)
            yield AllGather(step.hidden, StageName("mlp norm", layer))
        step.mlp(layer, is_normed=rows is not None)
        if not inputs.sums_are_whole:
            yield from _completed(step, plan, rows, StageName("mlp", layer))
    return (yield from _left(step, plan, inputs))


def _entered(step: StepStages, plan: RankPlan, inputs: StageInputs) -> Stages:
    """Embed tokens, or go on with what another rank gave."""
    if inputs.hidden is None:
        step.embed()
        yield from _completed(step, plan, inputs.rows, _EMBEDDING)
    else:
        step.resume(inputs.hidden, inputs.rows)
    return None


def _completed(step: StepStages, plan: RankPlan, rows: slice | None, stage: StageName) -> Stages:
    """The collective that makes a sum of its parts."""
    if plan.num_tp > 1:
        yield AllReduce(step.hidden, stage) if rows is None else ReduceScatter(step.hidden, stage)
    return None


def _left(step: StepStages, plan: RankPlan, inputs: StageInputs) -> Stages:
    """Logits, or hidden states for the next pipeline stage."""
    if not plan.is_last_stage:
        step.leave(inputs.rows)
        # A copy, as the next step may come before it is sent.
        return (step.hidden if inputs.rows is None else step.hidden[inputs.rows]).clone()
    yield from _scored(step, plan, inputs)
    if not inputs.num_logits:
        return _no_logits(step, plan, inputs)
    first = inputs.num_scored
    rows = slice(first, first + inputs.num_logits)
    if inputs.reducer is None:
        return (yield from _logits(step, plan, inputs, rows))
    return (yield from _reduced(step, plan, inputs, rows, inputs.reducer))


def _scored(step: StepStages, plan: RankPlan, inputs: StageInputs) -> Stages:
    """Reduce the logits of the positions that are scored, on the first rank of tp."""
    if inputs.scoring is None:
        return None
    for first in range(0, inputs.num_scored, MAX_SCORED_ROWS):
        rows = slice(first, min(first + MAX_SCORED_ROWS, inputs.num_scored))
        logits = yield from _logits(step, plan, inputs, rows)
        if logits is not None:
            inputs.scoring.score(rows, logits)
    return None


def _logits(step: StepStages, plan: RankPlan, inputs: StageInputs, rows: slice) -> Stages:
    """Logits of some rows, on the first rank of tp."""
    return (yield from _gathered(step.logits(rows), plan, inputs.vocab_size))


def _reduced(
    step: StepStages, plan: RankPlan, inputs: StageInputs, rows: slice, reducer: ShareReducer
) -> Stages:
    """Reduced shares of some rows, side by side, on the first rank of tp."""
    share = step.logits(rows)
    first_id = plan.tp_rank * share.shape[1]
    # The last shares may end with padding.
    reduced = reducer.reduce(share[:, : max(0, inputs.vocab_size - first_id)], first_id)
    return (yield from _gathered(reduced, plan, plan.num_tp * reducer.num_columns))


def _gathered(share: Tensor, plan: RankPlan, num_columns: int) -> Stages:
    """The shares of all ranks of tp side by side, on the first of them."""
    if plan.num_tp == 1:
        return share
    return (yield GatherColumns(share, _LOGITS, num_columns))


def _no_logits(step: StepStages, plan: RankPlan, inputs: StageInputs) -> Tensor | None:
    reducer = inputs.reducer
    width = inputs.vocab_size if reducer is None else plan.num_tp * reducer.num_columns
    return None if plan.tp_rank else step.hidden.new_empty(0, width).float()
