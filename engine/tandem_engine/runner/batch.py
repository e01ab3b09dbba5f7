"""The flat batch: the tokens of all rows of a step side by side, rows of one token first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.attention import (
    AttentionMetadata,
    Int32s,
    Ints,
    build_attention_metadata,
    lay_out_attention,
)
from tandem_engine.device.host_memory import HostInts, to_device
from tandem_engine.runner.prompt_scoring import PromptScoring, ScoredColumns
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.top_logits import ALL_LOGITS

PADDING: Final = 0
"""Token in the place of one that is not known yet."""
NO_DRAFTS: Final[Mapping[str, Sequence[int]]] = {}
NO_AWAITED: Final[Mapping[Row, int]] = {}


@dataclass(slots=True, kw_only=True)
class FlatBatch:
    """The tensors of one step.

        token_ids   | a | b | c C C |  d d d d d  |  e e e  |      [tokens]
        positions   | 9 |31 |12 . . |  0 1 2 3 4  |  8 9 10 |      [tokens]
        yield_at      0   1   2 3 4                      12        [yielding positions]

    Here C are drafts behind c, and d's chunk is not its last: it yields nothing.
    """

    token_ids: Tensor
    """int64 [tokens]"""
    host_token_ids: npt.NDArray[np.int64] | None = None
    """[tokens]: as the host knows them, PADDING where one is fed; None: on ranks other than 0."""
    attention: AttentionMetadata
    """Positions, slots and blocks of the tokens."""
    yield_at: HostInts
    """[yielding positions]: each yielding row's last known token, and its drafts."""
    yielding: Sequence[Row]
    """The rows that yield, in the order of `yield_at`."""
    drafts: Mapping[str, Sequence[int]]
    """Sequence id → its drafts; a row without one has one yielding position."""
    fed: "Feed | None" = None
    """Tokens that the step before this one yields; None: all are known."""
    sampled: Tensor | None = None
    """int64: all tokens of that step, once they are fed; None: it has failed, or none are fed."""
    sequence_ids: Sequence[str] = ()
    """The rows, in their order here, for an executor that hands them on."""
    block_tables: Sequence[Sequence[int]] = ()
    """Their KV blocks, those behind their contexts included."""
    is_simple: bool = False
    """True if every row that yields does so for itself alone, and one token: there are no drafts,
    no beams, and no choices to create."""
    expected_s: float | None = None
    """See `Step.expected_s`."""
    scoring: PromptScoring | None = None
    """Positions at which tokens of prompts are scored; None: there are none."""
    num_top: int = ALL_LOGITS
    """Largest logits of each rank's share that are sampled from; ALL_LOGITS: all of them."""

    def feed_in(self, sampled: Tensor | None) -> None:
        """Complete the tokens by those of the step before.

        Args:
            sampled: Its tokens; None: it has failed, and with it the rows that wait for them.
        """
        # A row whose logits were not finite has failed; it needs some token until it is removed.
        if self.fed is not None and sampled is not None:
            self.sampled, self.token_ids = sampled, self.fed.fill(self.token_ids, sampled)

    @property
    def logits_at(self) -> Tensor:
        """int64: tokens whose logits are computed, those that are scored first."""
        at = self.yield_at.tensor
        return at if self.scoring is None else torch.cat((self.scoring.at.tensor, at))

    def select(
        self,
        rows: Ints,
        *,
        firsts: Ints | None = None,
        counts: Ints | None = None,
        first_block: int = 0,
    ) -> "Selection":
        """Return some rows, or parts of their tokens, as a batch of their own that names no rows.

        Of a chunk that begins behind a row's first token here, those before it are in the cache.

        Args:
            rows: [selected] their indices, ascending.
            firsts: [selected]: the first token of each row that is taken; None: its first one.
            counts: [selected]: tokens of each row; None: all.
            first_block: Id of the KV block that is 0 in the new batch.
        """
        attention, device = self.attention, self.token_ids.device
        query_lens = np.diff(attention.row_starts)[rows].astype(np.int64)
        firsts = np.zeros_like(query_lens) if firsts is None else firsts
        counts = query_lens if counts is None else counts
        tokens = spans(attention.row_starts[rows] + firsts, counts)
        contexts = attention.context_lens[rows] - query_lens + firsts + counts
        num_blocks = -(-contexts // attention.block_size)
        blocks = attention.blocks[spans(attention.first_block[rows], num_blocks)]
        # Ascending, as rows and the tokens in them are: each is where it would be inserted.
        yield_at = self.yield_at.array
        places = np.flatnonzero(np.isin(yield_at, tokens, assume_unique=True))
        batch = FlatBatch(
            token_ids=self.token_ids[to_device(tokens, device)],
            attention=lay_out_attention(
                counts,
                contexts,
                blocks - np.int32(first_block),
                block_size=attention.block_size,
                device=attention.device,
            ),
            yield_at=HostInts(np.searchsorted(tokens, yield_at[places]), device),
            yielding=(),
            drafts=NO_DRAFTS,
            scoring=None if self.scoring is None else self.scoring.of_tokens(tokens),
            num_top=self.num_top,
        )
        return Selection(batch, tokens, places)


class Selection(NamedTuple):
    """Rows of a batch as one of their own; see `FlatBatch.select`."""

    batch: FlatBatch
    tokens: Ints
    """[tokens]: their indices in the whole batch."""
    places: Ints
    """[yielding positions]: their indices among those of the whole batch."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Indices of tokens that were not known when the batch was laid out."""

    targets: HostInts | None
    """Indices of `token_ids`; None: all, in order."""
    sources: HostInts | None
    """Indices of the previous step's tokens; None: all, in order."""

    def fill(self, token_ids: Tensor, sampled: Tensor) -> Tensor:
        """Return the tokens of a batch, completed by those of the previous step."""
        if self.targets is None or self.sources is None:
            return sampled.clamp(min=PADDING)
        token_ids[self.targets.tensor] = sampled[self.sources.tensor].clamp_(min=PADDING)
        return token_ids


ALL_FED: Final = Feed(None, None)
"""All tokens are those of the step before, in order."""


def flatten(
    step: Step,
    rows: Mapping[str, Row],
    *,
    block_size: int,
    device: torch.device,
    awaited: Mapping[Row, int] = NO_AWAITED,
) -> FlatBatch:
    """Lay out the tokens of `step`.

    Args:
        step: At least one row.
        rows: All rows of the step, and others.
        block_size: Tokens of a KV block.
        device: Where the tensors go.
        awaited: Rows that wait for a token of the previous step, which is still computed → its
            index among the tokens of that step.
    """
    step = _short_rows_first(step)
    columns = _Columns()
    # Once a row, in every step: what most rows do not need costs them no more than a test.
    for sequence_id, length, start in zip(
        step.sequence_ids, step.num_tokens, step.starts, strict=True
    ):
        row = rows[sequence_id]
        end = start + length
        drafts = step.drafts.get(sequence_id, ()) if step.drafts else ()
        if row.sampling.prompt_logprobs is not None:
            columns.scored.add(row, start, end, len(columns.token_ids))
        num_known = columns.add_known(row, start, end, awaited)
        if end - len(drafts) == num_known:
            columns.add_yielding(row, num_known)
        if drafts:
            columns.add_drafts(drafts)
    token_ids = _checked(columns.token_ids, step)
    return FlatBatch(
        token_ids=to_device(token_ids, device),
        host_token_ids=token_ids,
        attention=build_attention_metadata(
            query_lens=step.num_tokens,
            context_lens=columns.ends,
            block_tables=step.block_tables,
            block_size=block_size,
            device=device,
        ),
        yield_at=HostInts.of(columns.yield_at, device),
        yielding=columns.yielding,
        drafts=step.drafts,
        fed=columns.feed(device),
        sequence_ids=step.sequence_ids,
        block_tables=step.block_tables,
        is_simple=columns.are_simple and not step.drafts,
        scoring=columns.scored.scoring(device),
    )


def spans(begins: Ints | Int32s, lengths: Ints) -> Ints:
    """The indices begin … begin + length - 1 of each span, one span after another."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(total)


def with_last_tokens(batch: FlatBatch) -> FlatBatch:
    """Return a batch of decode rows with the last token of each, which the host knows.

    Between pipeline stages no row is in two steps at once. Tokens that a device handed on would
    have the first stage wait for the last one.
    """
    token_ids = np.array([row.output[-1] for row in batch.yielding], dtype=np.int64)
    on_device = to_device(token_ids, batch.token_ids.device)
    return replace(batch, token_ids=on_device, host_token_ids=token_ids, fed=None)


@dataclass(slots=True)
class _Columns:
    """The columns of a batch, to which one row after another is added."""

    token_ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    yield_at: list[int] = field(default_factory=list)
    yielding: list[Row] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    scored: ScoredColumns = field(default_factory=ScoredColumns)
    are_simple: bool = True
    """True while every row that yields does so for itself alone."""

    def add_known(self, row: Row, start: int, end: int, awaited: Mapping[Row, int]) -> int:
        """Add the row's tokens from `start` on that are no drafts; return how many it knows."""
        output = row.output
        num_known = len(row.prompt) + len(output)
        self.ends.append(end)
        if row in awaited:
            self.targets.append(len(self.token_ids))
            self.sources.append(awaited[row])
            self.token_ids.append(PADDING)
            return num_known + 1
        if end == num_known and end - start == 1 and output:
            self.token_ids.append(output[-1])
        else:
            self.token_ids += row.tokens_between(start, end)
        return num_known

    def add_yielding(self, row: Row, num_known: int) -> None:
        """Let the row yield behind the last token that was added."""
        self.yielding.append(row)
        # The first token of a request is also that of its other choices, which it creates.
        if not (row.is_single or row.is_choice_with(num_known)):
            self.are_simple = False
        self.yield_at.append(len(self.token_ids) - 1)

    def add_drafts(self, drafts: Sequence[int]) -> None:
        """Add the drafts of the row that was added last."""
        self.yield_at += range(len(self.token_ids), len(self.token_ids) + len(drafts))
        self.token_ids += drafts

    def feed(self, device: torch.device) -> Feed | None:
        """Indices of the tokens that the previous step yields; None: all are known."""
        if not self.targets:
            return None
        return Feed(HostInts.of(self.targets, device), HostInts.of(self.sources, device))


def _checked(token_ids: list[int], step: Step) -> npt.NDArray[np.int64]:
    if len(token_ids) != step.total_tokens:
        raise ValueError(
            f"the step asks for {step.total_tokens} tokens of its rows, which know only "
            f"{len(token_ids)} of them; this is a bug"
        )
    return np.array(token_ids, dtype=np.int64)


def _short_rows_first(step: Step) -> Step:
    """The rows of one token before all others, in which attention computes them together.

    Nearly every step has them so already. Drafts behind a decode row, or a prompt whose last
    token alone was not in the cache, come in between.
    """
    lengths = list(step.num_tokens)
    num_short = lengths.count(1)
    if lengths[:num_short].count(1) == num_short:
        return step
    order = sorted(range(len(lengths)), key=lambda row: lengths[row] != 1)
    pick = itemgetter(*order)
    return replace(
        step,
        sequence_ids=pick(step.sequence_ids),
        num_tokens=pick(step.num_tokens),
        starts=pick(step.starts),
        block_tables=pick(step.block_tables),
    )
