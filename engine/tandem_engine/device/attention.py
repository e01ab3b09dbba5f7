"""Rows, contexts and blocks of one step, for attention: computed once on the host.

One step is one flat batch. The tokens of all rows lie one after another, without padding:

    row            0  1  2 |      3      |    4
    tokens         d  d  d | p p p p p p | p p p
    row_starts     0  1  2   3             9      12
                   decodes     prompt chunks

A *row* is one sequence. Decode rows bring one token each and come first; a chunk brings one
token or more of a prompt. The last tokens of a row's context are the row's own tokens of the step.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tandem_engine.device.host_memory import to_device

TILE_TOKENS = 512
"""Queries of a continued chunk that attend together; bounds the causal mask, which they share."""

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

_FEW_ROWS: Final = 8
"""Rows that begin a block in one step, up to which each is laid out by itself."""

BlocksOf = Callable[[Ints, Ints], Int32s | Sequence[int]]
"""Rows, and for each the number of a block in its table → the ids of these blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSplits:
    """The KV blocks of all decode rows, as one list. A split is one block of one row."""

    blocks: Tensor
    """[splits] int64: id of the block; the splits of a row stand together, in token order."""
    rows: Tensor
    """[splits] int64: the decode row that the split belongs to."""
    tail_bias: Tensor
    """[splits, 1, block_size] float32: 0 for a token of the row, -inf behind its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Queries of one chunk that attend to the same keys."""

    tokens: slice
    """Slice of the flat batch that holds the queries."""
    num_keys: int
    """Tokens of the row's context up to and including the last query."""
    mask: Tensor | None
    """[queries, num_keys] bool, true where a query sees a key; None: see `is_causal`."""
    is_causal: bool
    """True when queries and keys are the same tokens, so that the kernel can mask by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One prompt chunk."""

    blocks: Tensor
    """[blocks] int64: ids of the blocks that hold the row's context."""
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionMetadata:
    """Rows, contexts and blocks of one step; see the module for the layout of the batch.

    The arrays are what native kernels read. The tensors besides are for kernels in torch, and
    made when one asks for them.
    """

    block_size: int
    num_decode_rows: int
    """Leading rows that bring exactly one token."""
    device: torch.device | str
    """Device of the tensors."""

    row_starts: Int32s
    """[rows + 1]: first token of each row in the flat batch; the last entry counts all tokens."""
    context_lens: Int32s
    """[rows]: tokens of each row in the cache once the step is done, the new ones included."""
    first_block: Int32s
    """[rows + 1]: where the blocks of each row begin in `blocks`."""
    blocks: Int32s
    """Ids of the blocks that hold the rows' contexts, row by row, in token order."""
    token_positions: Ints
    """[tokens]: position of each token in its sequence, from 0."""
    token_blocks: Ints
    """[tokens]: id of the block where K and V of each token go."""
    token_offsets: Ints
    """[tokens]: their offset in that block."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, called once a step and key: what kernels of a device share."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens of the flat batch."""
        return len(self.token_positions)

    @cached_property
    def positions(self) -> Tensor:
        """`token_positions` as a tensor."""
        return self._put(self.token_positions)

    @cached_property
    def slot_blocks(self) -> Tensor:
        """`token_blocks` as a tensor."""
        return self._put(self.token_blocks)

    @cached_property
    def slot_offsets(self) -> Tensor:
        """`token_offsets` as a tensor."""
        return self._put(self.token_offsets)

    @cached_property
    def fresh_blocks(self) -> Tensor:
        """[fresh blocks] int64: blocks of which this step writes the first token."""
        return self._put(self.token_blocks[self.token_offsets == 0])

    @cached_property
    def decodes(self) -> DecodeSplits | None:
        """The blocks of the rows that decode; None when no row does."""
        rows = self.num_decode_rows
        num_blocks = np.diff(self.first_block)[:rows]
        return _decode_splits(self.context_lens[:rows], num_blocks, self._blocks, self.block_size)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The rows that do not decode."""
        begins = self.context_lens - np.diff(self.row_starts)
        return _chunks(
            self.num_decode_rows, self.row_starts, begins, self.first_block, self._blocks
        )

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def _blocks(self) -> Tensor:
        return self._put(self.blocks.astype(np.int64))

    def _put(self, array: Ints) -> Tensor:
        return to_device(array, self.device)


def build_attention_metadata(
    *,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device | str = "cpu",
) -> AttentionMetadata:
    """Lay out one step.

    Args:
        query_lens: New tokens of each row, at least 1; rows with one token come first.
        context_lens: Tokens of each row after the step, the new ones included.
        block_tables: Ids of each row's KV blocks in token order, enough for its context.
        block_size: Tokens of one block.
        device: Where the tensors go.

    Raises:
        ValueError: The lists contradict each other, which is a bug of the caller.
    """
    queries = np.asarray(query_lens, dtype=np.int64)
    contexts = np.asarray(context_lens, dtype=np.int64)
    num_blocks = -(-contexts // block_size)  # of each row, as far as its context fills them
    _check(queries, contexts, num_blocks, block_tables)

    blocks = np.fromiter(
        chain.from_iterable(
            table[:count] for table, count in zip(block_tables, num_blocks.tolist(), strict=True)
        ),
        dtype=np.int32,
        count=int(num_blocks.sum()),
    )
    return lay_out_attention(queries, contexts, blocks, block_size=block_size, device=device)


def lay_out_attention(
    queries: Ints,
    contexts: Ints,
    blocks: Int32s,
    *,
    block_size: int,
    device: torch.device | str,
) -> AttentionMetadata:
    """Lay out a step whose blocks stand in one array.

    Args:
        queries: [rows]: new tokens of each row, at least 1; rows with one token come first.
        contexts: [rows]: tokens of each row after the step.
        blocks: Ids of the blocks that the contexts fill, row by row, in token order.
        block_size: Tokens of one block.
        device: Where the tensors go.
    """
    first_block = _starts(-(-contexts // block_size))  # [rows + 1], into blocks
    row_starts = _starts(queries)
    token_rows = np.repeat(np.arange(len(queries)), queries)
    begins = contexts - queries  # tokens of each row that stand in the cache already
    positions = begins[token_rows] + np.arange(row_starts[-1]) - row_starts[token_rows]
    return AttentionMetadata(
        block_size=block_size,
        num_decode_rows=_leading_ones(queries),
        device=device,
        row_starts=row_starts.astype(np.int32),
        context_lens=contexts.astype(np.int32),
        first_block=first_block.astype(np.int32),
        blocks=blocks,
        token_positions=positions,
        token_blocks=blocks[first_block[token_rows] + positions // block_size].astype(np.int64),
        token_offsets=positions % block_size,
    )


def advance_attention(before: AttentionMetadata, blocks_of: BlocksOf) -> AttentionMetadata:
    """Lay out the step behind `before`: the same rows, each with its next token.

    Args:
        before: A step with one token a row.
        blocks_of: Called once, with the rows that begin a block, if there are any.
    """
    positions = before.token_positions + 1
    offsets = before.token_offsets + 1
    rows = (offsets == before.block_size).nonzero()[0]
    first_block, blocks, token_blocks = before.first_block, before.blocks, before.token_blocks
    if len(rows):
        begun = blocks_of(rows, positions[rows] // before.block_size)
        ends = first_block[rows + 1]
        if len(rows) <= _FEW_ROWS:
            blocks = _inserted_few(blocks, ends.tolist(), begun)
            first_block = first_block.copy()
            for row in rows.tolist():
                first_block[row + 1 :] += 1
        else:
            blocks = _inserted(blocks, ends, begun)
            num_begun = np.zeros(len(first_block), dtype=np.int32)
            num_begun[rows + 1] = 1
            first_block = first_block + np.cumsum(num_begun, dtype=np.int32)
        token_blocks = token_blocks.copy()
        token_blocks[rows] = begun
        offsets[rows] = 0
    return AttentionMetadata(
        block_size=before.block_size,
        num_decode_rows=before.num_decode_rows,
        device=before.device,
        row_starts=before.row_starts,
        context_lens=before.context_lens + np.int32(1),
        first_block=first_block,
        blocks=blocks,
        token_positions=positions,
        token_blocks=token_blocks,
        token_offsets=offsets,
    )


def _inserted_few(blocks: Int32s, at: Sequence[int], begun: Int32s | Sequence[int]) -> Int32s:
    """Return the same as `_inserted`, piece by piece: faster for a few of them."""
    inserted = np.empty(len(blocks) + len(at), dtype=np.int32)
    begin = 0
    for number, end in enumerate(at):
        inserted[begin + number : end + number] = blocks[begin:end]
        inserted[end + number] = begun[number]
        begin = end
    inserted[begin + len(at) :] = blocks[begin:]
    return inserted


def _inserted(blocks: Int32s, at: Int32s, begun: Int32s | Sequence[int]) -> Int32s:
    """Return `np.insert(blocks, at, begun)` where `at` grows, in less time."""
    where = at + np.arange(len(at))
    is_old = np.ones(len(blocks) + len(at), dtype=np.bool_)
    is_old[where] = False
    inserted = np.empty(len(is_old), dtype=np.int32)
    inserted[where] = begun
    inserted[is_old] = blocks
    return inserted


def _check(
    queries: Ints, contexts: Ints, num_blocks: Ints, block_tables: Sequence[Sequence[int]]
) -> None:
    if not len(queries) == len(contexts) == len(block_tables):
        raise ValueError(
            f"{len(queries)} query lengths, {len(contexts)} context lengths and "
            f"{len(block_tables)} block tables are not of the same rows; this is a bug"
        )
    tables = np.fromiter(map(len, block_tables), dtype=np.int64, count=len(block_tables))
    wrong = (queries < 1) | (contexts < queries) | (tables < num_blocks)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"row {row} brings {queries[row]} tokens to a context of {contexts[row]} "
            f"in {tables[row]} blocks, which cannot be; this is a bug"
        )


def _starts(lengths: Ints) -> Ints:
    """Start of each of the consecutive pieces, and the end of the last one."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))


def _leading_ones(queries: Ints) -> int:
    longer = queries != 1
    return int(longer.argmax()) if longer.any() else len(queries)


def _decode_splits(
    contexts: Int32s, num_blocks: Int32s, all_blocks: Tensor, block_size: int
) -> DecodeSplits | None:
    if not len(contexts):
        return None
    last = np.cumsum(num_blocks) - 1  # split that holds the end of each row
    filled = contexts - (num_blocks - 1) * block_size  # tokens in it
    bias = np.zeros((int(last[-1]) + 1, 1, block_size), dtype=np.float32)
    bias[last, 0] = np.where(np.arange(block_size) < filled[:, None], 0.0, -np.inf)
    rows = np.repeat(np.arange(len(contexts)), num_blocks)
    device = all_blocks.device
    return DecodeSplits(
        blocks=all_blocks[: len(rows)],
        rows=to_device(rows, device),
        tail_bias=to_device(bias, device),
    )


def _chunks(
    first_row: int, row_starts: Int32s, begins: Int32s, first_block: Int32s, all_blocks: Tensor
) -> tuple[Chunk, ...]:
    """The rows from `first_row` on, each as a chunk."""
    rows = range(first_row, len(begins))
    cuts = [_cut(int(row_starts[row]), int(row_starts[row + 1]), int(begins[row])) for row in rows]
    causal = _CausalMask.over([cut for row_cuts in cuts for cut in row_cuts], all_blocks.device)
    return tuple(
        Chunk(
            blocks=all_blocks[int(first_block[row]) : int(first_block[row + 1])],
            tiles=tuple(causal.tile(cut) for cut in row_cuts),
        )
        for row, row_cuts in zip(rows, cuts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """Queries that attend together, and the keys of their row that come before the first."""

    start: int
    end: int
    before: int

    @property
    def needs_mask(self) -> bool:
        # A single query sees every key, and with nothing before it the kernel masks by itself.
        return self.before > 0 and self.end - self.start > 1


def _cut(start: int, end: int, begin: int) -> list[_Cut]:
    if begin == 0:
        return [_Cut(start, end, 0)]
    return [
        _Cut(tile, min(tile + TILE_TOKENS, end), begin + tile - start)
        for tile in range(start, end, TILE_TOKENS)
    ]


@dataclass(frozen=True, slots=True)
class _CausalMask:
    """One mask from which that of every tile is a window, because it depends on j - i alone.

    Query i of a tile with p keys before it sees key j when j <= i + p. Here p is the largest of
    the step; a tile with a smaller one begins further to the right:

        k k k k . .    largest p = 3, 3 queries
        k k k k k .        . . [k k . .]  the window of p = 1 leaves out 2 columns
        k k k k k k        . . [k k k .]
                           . . [k k k k]
    """

    mask: Tensor  # [queries, before + queries] bool
    before: int

    @classmethod
    def over(cls, cuts: Sequence[_Cut], device: torch.device) -> "_CausalMask":
        masked = [cut for cut in cuts if cut.needs_mask]
        queries = max((cut.end - cut.start for cut in masked), default=0)
        before = max((cut.before for cut in masked), default=0)
        mask = torch.ones(queries, before + queries, dtype=torch.bool, device=device)
        return cls(mask.tril_(before), before)

    def tile(self, cut: _Cut) -> Tile:
        queries = cut.end - cut.start
        window = self.mask[:queries, self.before - cut.before : self.before + queries]
        return Tile(
            tokens=slice(cut.start, cut.end),
            num_keys=cut.before + queries,
            mask=window if cut.needs_mask else None,
            is_causal=cut.before == 0,
        )
