"""The messages by which rank 0 hands steps to the other ranks of its group: only what has changed.

Rank 0 lays a step out and knows all of its tokens. The others need of it what the forward pass
reads, and no more: they keep no prompts, no outputs and no beams, and nothing of sampling. What
they keep is the block table of each sequence, under a small number: rank 0 gives a *table id* to a
sequence with its first step, and to another one later. So a message has

    header | table ids, tokens and contexts of the rows | yielding positions | tables | token ids
           | fed tokens | scored positions | the tokens behind them

where of a table only the blocks behind the common part with the last one are sent, and the first
two parts are missing where all rows of the last batch go on by one token. Tokens that a device has
sampled and the host has not seen go from device to device: the message says where they belong. The
numbers are int32.

Pure: arrays and bytes. The messages of one encoder must reach a decoder in order and without a gap;
they are numbered, and a decoder refuses others.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import is_not
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tandem_engine.api.step import BlockCopy, Step

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

# The kinds of messages.
_COPIES: Final = 1
_BATCH: Final = 2
_CONTINUED: Final = 3
"""A batch with the rows of the last one, each with its next token, which yields."""

_INT: Final = "i"
_INT_BYTES: Final = 4
_HEADER: Final = 10
"""Numbers of a header: the kind, the message's number, the lengths of its parts, the top logits."""
_ALL: Final = -1
"""In place of a count of fed tokens: all are, in order, and no token id is sent."""
_NUMBERS: Final = 1 << 31
"""Messages are numbered modulo this."""
_MIN_TABLES: Final = 64
_MIN_BLOCKS: Final = 16


class BadMessage(Exception):
    """A message is not the next of its encoder, or damaged; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Positions at which tokens of prompts are scored."""

    at: Ints
    """[positions]: indices of tokens."""
    token_ids: Ints
    """[positions]: the tokens that follow."""
    num_top: int
    """Likeliest tokens at each."""


@dataclass(frozen=True, slots=True)
class FedTokens:
    """Tokens of the step before that the devices hand on among themselves."""

    num_sampled: int
    """All tokens of that step."""
    targets: Ints | None
    """Indices of the batch's tokens; None: all, in order."""
    sources: Ints | None
    """Indices of the tokens of that step; None: all, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """A flat batch as rank 0 has laid it out; see `tandem_engine.runner.batch`."""

    sequence_ids: Sequence[str]
    block_tables: Sequence[Sequence[int]]
    """KV blocks of each row, those behind its context included."""
    row_starts: Int32s
    """[rows + 1]: the first token of each row; the last entry counts all tokens."""
    context_lens: Int32s
    """[rows]: tokens of each row in the cache once the step is done."""
    token_ids: Ints
    """[tokens]; of no meaning where a token is fed."""
    yield_at: Ints
    """[yielding positions]: indices of tokens."""
    fed: FedTokens | None = None
    """None: `token_ids` has all."""
    scored: "ScoredTokens | None" = None
    """None: no token of a prompt is scored."""
    num_top: int = 0
    """Largest logits of each share of the vocabulary that are sampled from; 0: all."""

    @property
    def decodes_only(self) -> bool:
        """True if each row has one token, which yields."""
        return len(self.context_lens) == len(self.token_ids) == len(self.yield_at)

    def continues(self, last: "BatchColumns") -> bool:
        """True if it has the rows of `last`, which only decoded, each with its next token."""
        return (
            self.decodes_only
            and last.decodes_only
            and self.sequence_ids == last.sequence_ids
            # Bytes of a few hundred numbers are compared in less time than an array is made.
            and self.context_lens.tobytes() == (last.context_lens + 1).tobytes()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """A batch as the other ranks get it."""

    is_continued: bool
    """True if it has the rows of the batch before, each with its next token, which yields."""
    table_ids: Int32s
    """[rows]: where `tables` has the blocks of each row."""
    query_lens: Ints
    """[rows]: tokens of each row."""
    context_lens: Ints
    """[rows]: tokens of each row in the cache once the step is done."""
    token_ids: Ints
    """[tokens]; of no meaning where a token is fed."""
    yield_at: Ints
    """[yielding positions]: indices of tokens."""
    tables: "BlockTables"
    """The tables as they are now; later messages change them."""
    fed: FedTokens | None = None
    """None: `token_ids` has all."""
    scored: ScoredTokens | None = None
    """None: no token of a prompt is scored."""
    num_top: int = 0
    """As in `BatchColumns`."""


class _Change(NamedTuple):
    """A table that is not what the other ranks have."""

    table_id: int
    num_known: int
    """Blocks of the table that they have."""
    num_kept: int
    """Blocks that both begin with."""
    table: tuple[int, ...]

    @property
    def only_appends(self) -> bool:
        """True if it is the table that they have, and further blocks."""
        return self.num_kept == self.num_known


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a batch, kept for the next one."""

    columns: BatchColumns
    table_ids: list[int]


class StepEncoder:
    """Writes the messages of rank 0.

    Each message changes what it knows of the other ranks, and must reach them before the next.
    """

    def __init__(self) -> None:
        self._number = 0
        self._table_ids: dict[str, int] = {}
        self._free: list[int] = []
        # By table id: the table that the other ranks have.
        self._tables: list[tuple[int, ...]] = []
        self._last: _Rows | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences that have a table id."""
        return len(self._table_ids)

    def remove(self, sequence_ids: Iterable[str]) -> None:
        """Forget sequences; others get their table ids. Unknown ids are ignored."""
        for sequence_id in sequence_ids:
            table_id = self._table_ids.pop(sequence_id, None)
            if table_id is not None:
                self._free.append(table_id)
                # A new sequence of this id does not go on with the rows of the last batch.
                self._last = None

    def copies(self, step: Step) -> bytes | None:
        """Return the message of the step's copies of blocks; None: it has none."""
        copies = (step.swapped_out, step.swapped_in, step.copied)
        if not any(copies):
            return None
        numbers = array(_INT, chain.from_iterable(chain.from_iterable(copies)))
        return self._header(_COPIES, *map(len, copies)) + numbers.tobytes()

    def batch(self, columns: BatchColumns) -> bytes:
        """Return the message of a batch."""
        last, table_ids, changes = self._last, None, []
        if last is not None and columns.continues(last.columns):
            table_ids = last.table_ids
            changes = self._changes(columns, table_ids)
        kind, rows = _CONTINUED, b""
        if table_ids is None or not all(change.only_appends for change in changes):
            table_ids = self._table_ids_of(columns.sequence_ids)
            changes = self._changes(columns, table_ids)
            kind, rows = _BATCH, _rows_part(columns, table_ids)
        tables, num_blocks = _tables_part(changes)
        header = self._header(
            kind,
            len(columns.context_lens),
            len(columns.token_ids),
            len(columns.yield_at),
            len(changes),
            num_blocks,
            0 if columns.scored is None else len(columns.scored.at),
            columns.num_top,
            _num_fed(columns.fed),
        )
        for change in changes:
            self._tables[change.table_id] = change.table
        self._last = _Rows(columns, table_ids)
        scored = _scored_part(columns.scored)
        return b"".join((header, rows, tables, _tokens_part(columns), scored))

    def _table_ids_of(self, sequence_ids: Sequence[str]) -> list[int]:
        known = self._table_ids
        try:
            return [known[sequence_id] for sequence_id in sequence_ids]
        except KeyError:
            return [self._table_id_of(sequence_id) for sequence_id in sequence_ids]

    def _table_id_of(self, sequence_id: str) -> int:
        table_id = self._table_ids.get(sequence_id)
        if table_id is None:
            if not self._free:
                self._free.append(len(self._tables))
                self._tables.append(())
            table_id = self._table_ids[sequence_id] = self._free.pop()
        return table_id

    def _changes(self, columns: BatchColumns, table_ids: list[int]) -> list[_Change]:
        tables, last, known = columns.block_tables, self._last, self._tables
        # A sequence keeps its tuple while nothing changes; contents are compared where it has not.
        if last is not None and table_ids is last.table_ids:
            # No loop of Python's over the rows, few of which begin a block in a step.
            before: Iterable[Sequence[int]] = last.columns.block_tables
        else:
            before = map(known.__getitem__, table_ids)
        changed = compress(zip(table_ids, tables, strict=True), map(is_not, tables, before))
        return [_change(table_id, known[table_id], tuple(table)) for table_id, table in changed]

    def _header(self, kind: int, *lengths: int) -> bytes:
        numbers = (kind, self._number, *lengths)
        self._number = (self._number + 1) % _NUMBERS
        return array(_INT, numbers + (0,) * (_HEADER - len(numbers))).tobytes()


class BlockTables:
    """Block tables by table id, side by side in one array."""

    def __init__(self) -> None:
        self._blocks = np.zeros((_MIN_TABLES, _MIN_BLOCKS), dtype=np.int32)

    def put(self, table_id: int, begin: int, blocks: Int32s) -> None:
        """Replace the blocks of a table from number `begin` on."""
        end = begin + len(blocks)
        if table_id >= self._blocks.shape[0] or end > self._blocks.shape[1]:
            self._grow(table_id + 1, end)
        self._blocks[table_id, begin:end] = blocks

    def gather(self, table_ids: Int32s, counts: Ints) -> Int32s:
        """Return the first blocks of some tables, so many of each, one table after another."""
        width = self._blocks.shape[1]
        ends = np.cumsum(counts)
        first = table_ids * width - (ends - counts)  # of each table, less those gathered before it
        blocks: Int32s = self._blocks.ravel()[np.repeat(first, counts) + np.arange(ends[-1])]
        return blocks

    def blocks(self, table_ids: Int32s, numbers: Ints) -> Int32s:
        """Return one block of each of some tables."""
        blocks: Int32s = self._blocks[table_ids, numbers]
        return blocks

    def _grow(self, num_tables: int, num_blocks: int) -> None:
        before = self._blocks
        tables, width = before.shape
        while tables < num_tables:
            tables *= 2
        while width < num_blocks:
            width *= 2
        # Pages that are never written take up no memory.
        self._blocks = np.zeros((tables, width), dtype=np.int32)
        self._blocks[: before.shape[0], : before.shape[1]] = before


class StepDecoder:
    """Reads the messages on a rank other than 0."""

    def __init__(self) -> None:
        self._number = 0
        self._tables = BlockTables()
        self._last: DecodedBatch | None = None

    def decode(self, message: bytes) -> Step | DecodedBatch:
        """Return the batch, or a step that has copies and nothing else.

        Raises:
            BadMessage: It is not the next message of the encoder, or damaged.
        """
        parts = _Parts(message)
        kind, number, *lengths = parts.take(_HEADER).tolist()
        if number != self._number:
            raise BadMessage(
                f"Message {number} of rank 0 came where message {self._number} was due, so that "
                f"block tables could be wrong; the ranks must start again."
            )
        self._number = (number + 1) % _NUMBERS
        if kind == _COPIES:
            return _copies(parts, lengths)
        if kind == _BATCH or (kind == _CONTINUED and self._last is not None):
            return self._batch(parts, lengths, is_continued=kind == _CONTINUED)
        raise BadMessage(f"Message {number} of rank 0 is of the unknown kind {kind}.")

    def _batch(self, parts: "_Parts", lengths: list[int], *, is_continued: bool) -> DecodedBatch:
        num_rows, num_tokens, num_yielding, num_changes, num_blocks, *lengths = lengths
        num_scored, num_top, num_fed = lengths
        last = self._last
        if is_continued and last is not None:
            table_ids, query_lens, yield_at = last.table_ids, last.query_lens, last.yield_at
            context_lens = last.context_lens + 1
        else:
            table_ids = parts.take(num_rows)
            query_lens = parts.take(num_rows).astype(np.int64)
            context_lens = parts.take(num_rows).astype(np.int64)
            yield_at = parts.take(num_yielding).astype(np.int64)
        self._change_tables(parts, num_changes, num_blocks)
        if num_fed == _ALL:
            token_ids = np.zeros(num_tokens, dtype=np.int64)
        else:
            token_ids = parts.take(num_tokens).astype(np.int64)
        fed = _fed_tokens(parts, num_fed) if num_fed else None
        scored = _scored_tokens(parts, num_scored) if num_scored else None
        parts.end()
        self._last = DecodedBatch(
            is_continued=is_continued,
            table_ids=table_ids,
            query_lens=query_lens,
            context_lens=context_lens,
            token_ids=token_ids,
            yield_at=yield_at,
            tables=self._tables,
            fed=fed,
            scored=scored,
            num_top=num_top,
        )
        return self._last

    def _change_tables(self, parts: "_Parts", num_changes: int, num_blocks: int) -> None:
        changes = parts.take(3 * num_changes).tolist()
        blocks = parts.take(num_blocks)
        at = 0
        for change in range(num_changes):
            table_id, begin, count = changes[3 * change : 3 * change + 3]
            self._tables.put(table_id, begin, blocks[at : at + count])
            at += count


class _Parts:
    """The numbers of a message, taken from its front."""

    def __init__(self, message: bytes) -> None:
        if len(message) % _INT_BYTES:
            raise BadMessage(f"A message of rank 0 has {len(message)} bytes, which are no numbers.")
        self._numbers: Int32s = np.frombuffer(message, dtype=np.int32)
        self._at = 0

    def take(self, count: int) -> Int32s:
        """Return the next `count` numbers."""
        begin, self._at = self._at, self._at + count
        if count < 0 or self._at > len(self._numbers):
            raise self._wrong_length()
        return self._numbers[begin : self._at]

    def end(self) -> None:
        """Refuse a message that has more."""
        if self._at != len(self._numbers):
            raise self._wrong_length()

    def _wrong_length(self) -> BadMessage:
        return BadMessage(
            f"A message of rank 0 has {len(self._numbers)} numbers, and by its header it has "
            f"another length; it is damaged."
        )


def _copies(parts: _Parts, lengths: list[int]) -> Step:
    swapped_out, swapped_in, copied = (
        [BlockCopy(*pair) for pair in parts.take(2 * count).reshape(count, 2).tolist()]
        for count in lengths[:3]
    )
    parts.end()
    return Step(swapped_out=swapped_out, swapped_in=swapped_in, copied=copied)


def _change(table_id: int, known: tuple[int, ...], table: tuple[int, ...]) -> _Change:
    num_known, num_blocks = len(known), len(table)
    if table[:num_known] == known:
        num_kept = num_known
    elif known[:num_blocks] == table:
        # Blocks were taken back; nothing is sent, as none of the others reads behind a context.
        num_kept = num_blocks
    else:
        num_kept = 0
    return _Change(table_id, num_known, num_kept, table)


def _rows_part(columns: BatchColumns, table_ids: list[int]) -> bytes:
    return b"".join(
        (
            array(_INT, table_ids).tobytes(),
            np.diff(columns.row_starts).tobytes(),
            columns.context_lens.tobytes(),
            _int32(columns.yield_at),
        )
    )


def _tables_part(changes: list[_Change]) -> tuple[bytes, int]:
    """Return the changes as bytes, and the number of blocks in them."""
    if not changes:
        return b"", 0
    numbers = array(_INT)
    blocks = array(_INT)
    for table_id, _, num_kept, table in changes:
        numbers.extend((table_id, num_kept, len(table) - num_kept))
        blocks.extend(table[num_kept:])
    return numbers.tobytes() + blocks.tobytes(), len(blocks)


def _num_fed(fed: FedTokens | None) -> int:
    if fed is None:
        return 0
    return _ALL if fed.targets is None else len(fed.targets)


def _tokens_part(columns: BatchColumns) -> bytes:
    """Return the tokens that the host knows, and where the others belong."""
    fed = columns.fed
    if fed is None:
        return _int32(columns.token_ids)
    num_sampled = array(_INT, (fed.num_sampled,)).tobytes()
    if fed.targets is None or fed.sources is None:
        return num_sampled
    numbers = (columns.token_ids, fed.targets, fed.sources)
    token_ids, targets, sources = map(_int32, numbers)
    return token_ids + num_sampled + targets + sources


def _fed_tokens(parts: _Parts, num_fed: int) -> FedTokens:
    (num_sampled,) = parts.take(1).tolist()
    if num_fed == _ALL:
        return FedTokens(num_sampled, None, None)
    targets, sources = (parts.take(num_fed).astype(np.int64) for _ in range(2))
    return FedTokens(num_sampled, targets, sources)


def _scored_part(scored: ScoredTokens | None) -> bytes:
    if scored is None:
        return b""
    return b"".join(
        (array(_INT, (scored.num_top,)).tobytes(), _int32(scored.at), _int32(scored.token_ids))
    )


def _scored_tokens(parts: _Parts, count: int) -> ScoredTokens:
    (num_top,) = parts.take(1).tolist()
    at, token_ids = (parts.take(count).astype(np.int64) for _ in range(2))
    return ScoredTokens(at, token_ids, num_top)


def _int32(numbers: Ints) -> bytes:
    return numbers.astype(np.int32).tobytes()
