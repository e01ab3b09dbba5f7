"""Fakes whose answers can be computed by hand; for tests, benchmarks and the docs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final
from zlib import crc32

from tandem_engine.api.drafts import Draft, DraftLimits, Proposals
from tandem_engine.api.request import Request
from tandem_engine.api.step import BlockCopy, Candidate, SampledToken, Step, StepResult

WRONG_DRAFT: Final = -1
"""Guess of the counting draft where it is to be wrong: no sequence ever has this token."""


class CountingRunner:
    """A runner without a model: the k-th token of every sequence is k (0, 1, 2 …).

    Beams are the exception: they get made-up continuations, always the same ones for the same
    tokens, and have the tokens that `beam_moves` gives them.

    It implements `tandem_engine.api.step.Runner` and checks the scheduler's side of it, with an
    AssertionError where one is broken:

    - rows were added before, stand in a step once, and compute what follows on what is computed:
      nothing twice, no hole, nothing behind the known tokens and drafts;
    - all that a row reads stands in its blocks. For each slot of each block, on the device and on
      the host, the tokens are kept that led to what was written there, so a wrong prefix hit, a
      forgotten copy and a block that was released too early are found by the row that reads it;
    - a row writes only into blocks that no other sequence holds, as far as is known: of a
      sequence that is not in the step, the blocks of its last one.

    A sequence that is swapped out is known by its blocks among `swapped_out`.

    Args:
        block_size: Tokens of a KV block.
        right_drafts: True when the draft of the output token k is right, at index k modulo the
            length.
        checks: False leaves the checks out, for a simulator that wants speed.
    """

    def __init__(
        self, *, block_size: int, right_drafts: Sequence[bool] = (True,), checks: bool = True
    ) -> None:
        self._right_drafts = right_drafts
        self._sequences: dict[str, _Sequence] = {}
        self._pending_forks: set[str] = set()
        self._dropped: dict[str, _Sequence] = {}
        self._lost: set[str] = set()
        self._ledger = _Ledger(block_size) if checks else None

    def add(self, request: Request) -> None:
        """Add a request."""
        first, *others = request.sequences
        self._sequences[first] = _Sequence(first, request, _prompt_history(request, self._ledger))
        if not request.sampling.use_beam_search:
            self._pending_forks.update(others)

    def run(self, step: Step) -> StepResult:
        """Count further for each row whose known tokens are all computed."""
        self.begin(step)
        self.copy(step)
        return self.count(step)

    def begin(self, step: Step) -> None:
        """Take note of what a step says of sequences and blocks, before anything is computed."""
        self._move(step)
        if self._ledger is not None:
            _check_columns(step, self._sequences)
            self._ledger.hold(step)
        for sequence_id in step.preempted:
            if sequence_id in self._sequences:
                self._sequences[sequence_id].num_computed = 0

    def copy(self, step: Step) -> None:
        """Make the copies of a step."""
        if self._ledger is not None:
            self._ledger.copy(step)

    def count(self, step: Step) -> StepResult:
        """Compute the rows of a step whose copies are made."""
        tokens: dict[str, Sequence[SampledToken]] = {}
        candidates: dict[str, Sequence[Candidate]] = {}
        for at, sequence_id in enumerate(step.sequence_ids):
            row = self._sequences[sequence_id]
            if sequence_id in self._lost:
                tokens[sequence_id] = [SampledToken(0)]
                continue
            drafts = step.drafts.get(sequence_id, ())
            if not self._compute(row, step, at, drafts):
                continue
            if row.is_beam:
                candidates[sequence_id] = _candidates_of(row)
            else:
                tokens.update(self._yield(row, drafts))
        return StepResult(tokens=tokens, candidates=candidates)

    def submit(self, step: Step) -> "_Counted":
        """Compute `step` now; the handle returns the result."""
        try:
            return _Counted(self.run(step), None)
        except Exception as error:  # noqa: BLE001 - as `Runner.submit` specifies
            # They may be in one more step before the failure is known.
            self.lose((*step.sequence_ids, *step.moved))
            return _Counted(None, error)

    def lose(self, sequence_ids: Iterable[str]) -> None:
        """Ignore these sequences in steps until they are removed."""
        self._lost.update(sequence_ids)

    def close(self) -> None:
        """Nothing to release."""

    def remove(self, sequence_id: str) -> None:
        """Forget a sequence; unknown ids are ignored. One that does not exist yet never will."""
        self._pending_forks.discard(sequence_id)
        self._lost.discard(sequence_id)
        row = self._sequences.pop(sequence_id, None)
        if row is None:
            return
        if self._ledger is not None:
            self._ledger.release(row)
        self._dropped[sequence_id] = row
        siblings = row.request.sequences
        if not any(sibling in self._sequences for sibling in siblings):
            self._pending_forks.difference_update(siblings)
            for sibling in siblings:
                self._dropped.pop(sibling, None)

    def _move(self, step: Step) -> None:
        moved = []
        for sequence_id, move in step.beam_moves.items():
            parent = self._sequences.get(move.parent) or self._dropped.get(move.parent)
            assert parent is not None, f"{sequence_id} goes on from {move.parent}, which is unknown"
            moved.append(parent.become(sequence_id, move.token_id))
        for beam in moved:
            before = self._sequences.get(beam.sequence_id)
            if self._ledger is not None and before is not None:
                self._ledger.release(before)
            self._sequences[beam.sequence_id] = beam

    def _drafts(self, row: "_Sequence", count: int) -> list[int]:
        first, pattern = len(row.output), self._right_drafts
        return [
            number if pattern[number % len(pattern)] else WRONG_DRAFT
            for number in range(first, first + count)
        ]

    def propose(self, limits: DraftLimits) -> Proposals:
        """Guess right or wrong, as the pattern says."""
        drafts = {
            sequence_id: Draft("ngram", self._drafts(self._sequences[sequence_id], count))
            for sequence_id, count in limits.ngram.items()
            if sequence_id not in self._lost
        }
        for sequence_id, count in limits.draft.items():
            if sequence_id not in drafts and sequence_id not in self._lost:
                guesses = self._drafts(self._sequences[sequence_id], count)
                drafts[sequence_id] = Draft("draft", guesses)
        return Proposals(drafts=drafts, num_passes=max(limits.draft.values(), default=0))

    def _compute(self, row: "_Sequence", step: Step, at: int, drafts: Sequence[int]) -> bool:
        """Record what row `at` of the step computes; return True if it yields."""
        start, end = step.starts[at], step.starts[at] + step.num_tokens[at]
        known = row.num_known
        yields = end - len(drafts) == known
        if self._ledger is not None:
            _check_extent(row, start=start, end=end, num_drafts=len(drafts))
            if at < step.num_decodes:
                _check_decode(row, start=start, num_tokens=step.num_tokens[at], drafts=drafts)
            self._ledger.write(row, step.block_tables[at], start, end, drafts)
        row.num_computed = min(end, known)
        if yields and (drafts or row.is_beam) and self._ledger is not None:
            # Drafts that are refused, and beams that move, give blocks back before the next step.
            self._ledger.keep(row, 0 if row.is_beam else known)
        return yields

    def _yield(self, row: "_Sequence", drafts: Sequence[int]) -> dict[str, Sequence[SampledToken]]:
        is_first = not row.output
        first = len(row.output)
        right = next((at for at, token in enumerate(drafts) if token != first + at), len(drafts))
        forked = self._fork(row) if is_first else []
        row.extend(range(first, first + 1 + right))
        row.num_computed += right
        tokens: dict[str, Sequence[SampledToken]] = {
            row.sequence_id: [SampledToken(first + number) for number in range(1 + right)]
        }
        for other in forked:
            other.extend((0,))
            tokens[other.sequence_id] = [SampledToken(0)]
        return tokens

    def _fork(self, row: "_Sequence") -> list["_Sequence"]:
        forked = [
            row.twin(sequence_id)
            for sequence_id in row.request.sequences
            if sequence_id in self._pending_forks
        ]
        for other in forked:
            self._pending_forks.discard(other.sequence_id)
            self._sequences[other.sequence_id] = other
        return forked


@dataclass(frozen=True, slots=True)
class _Counted:
    """The result of a step."""

    counted: StepResult | None
    error: Exception | None

    @property
    def has_failed(self) -> bool:
        """A device reports it at the end only."""
        return False

    def result(self) -> StepResult:
        """Return it, or raise what the step raised."""
        if self.counted is None:
            raise self.error or RuntimeError("The step ended without a result; this is a bug.")
        return self.counted


@dataclass(slots=True, eq=False)
class _Sequence:
    """A sequence, and how much of it is computed."""

    sequence_id: str
    request: Request
    histories: list[int] | None
    """For each known token, a number that stands for it and all tokens before it. None: not
    checked."""
    output: list[int] = field(default_factory=list)
    num_computed: int = 0

    @property
    def num_known(self) -> int:
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def is_beam(self) -> bool:
        return self.request.sampling.use_beam_search

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.output.append(token)
            if self.histories is not None:
                self.histories.append(_after(self.histories[-1], token))

    def twin(self, sequence_id: str) -> "_Sequence":
        return _Sequence(
            sequence_id,
            self.request,
            None if self.histories is None else list(self.histories),
            list(self.output),
            self.num_computed,
        )

    def become(self, sequence_id: str, token_id: int) -> "_Sequence":
        beam = self.twin(sequence_id)
        beam.extend((token_id,))
        return beam


class _Contents:
    """The contents of the blocks of one memory: for each slot written, the token's history."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[int, list[int]] = {}

    def take(self, other: "_Contents", copies: Sequence[BlockCopy]) -> None:
        """Copy blocks of `other` into own ones, in the order given."""
        for source, target in copies:
            self._slots[target] = other.slots(source)

    def slots(self, block: int) -> list[int]:
        """Contents of a block, as a new list."""
        return list(self._slots.get(block, ()))

    def first_wrong(self, table: Sequence[int], histories: list[int], end: int) -> int | None:
        """The first of the tokens 0 … `end`−1 that does not stand in its slot."""
        size = self._block_size
        for low in range(0, end, size):
            high = min(low + size, end)
            slots = self._slots.get(table[low // size], [])
            if slots[: high - low] != histories[low:high]:
                return low + _common(slots, histories[low:high])
        return None

    def write(self, table: Sequence[int], histories: list[int], start: int, end: int) -> None:
        """Write the tokens `start` … `end`−1; what stood behind them in their blocks is lost."""
        size = self._block_size
        for low in range(start - start % size, end, size):
            slots = self._slots.setdefault(table[low // size], [])
            first = max(start, low)
            assert first - low <= len(slots), f"block {table[low // size]} gets a hole"
            slots[first - low :] = histories[first : min(low + size, end)]


class _Ledger:
    """The blocks: what stands in them, and which sequences hold them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._device = _Contents(block_size)
        self._host = _Contents(block_size)
        self._tables: dict[str, tuple[int, ...]] = {}
        self._holders: dict[int, set[str]] = {}

    def hold(self, step: Step) -> None:
        """Record the step's tables, and the sequences that hold no blocks any more."""
        for sequence_id in step.preempted:
            self._forget(sequence_id)
        rows = set(step.sequence_ids)
        leaving = {
            holder for copy in step.swapped_out for holder in self._holders.get(copy.source, ())
        }
        for sequence_id in leaving - rows:
            self._forget(sequence_id)
        for sequence_id, table in zip(step.sequence_ids, step.block_tables, strict=True):
            self._hold(sequence_id, tuple(table))

    def copy(self, step: Step) -> None:
        """Make the step's copies."""
        _check_targets(chain(step.swapped_in, step.copied), "KV")
        _check_targets(step.swapped_out, "host")
        self._host.take(self._device, step.swapped_out)
        self._device.take(self._host, step.swapped_in)
        self._device.take(self._device, step.copied)

    def write(
        self, row: _Sequence, table: Sequence[int], start: int, end: int, drafts: Sequence[int]
    ) -> None:
        """Compute the tokens `start` … `end`−1 of a row, the last ones of which are drafts."""
        name, size = row.sequence_id, self._block_size
        assert end <= len(table) * size, f"{name} lacks a block"
        assert row.histories is not None
        wrong = self._device.first_wrong(table, row.histories, start)
        assert wrong is None, (
            f"{name} reads token {wrong} in block {table[wrong // size]}, where another one stands"
        )
        for block in table[start // size : -(-end // size)]:
            others = self._holders[block] - {name}
            assert not others, f"{name} writes block {block}, which {sorted(others)} hold too"
        histories = row.histories
        if drafts:
            histories = list(histories)
            for token in drafts:
                histories.append(_after(histories[-1], token))
        self._device.write(table, histories, start, end)

    def keep(self, row: _Sequence, num_tokens: int) -> None:
        """Let a row hold no more than the blocks of so many tokens."""
        blocks = -(-num_tokens // self._block_size)
        self._hold(row.sequence_id, self._tables[row.sequence_id][:blocks])

    def release(self, row: _Sequence) -> None:
        """Let a sequence that is gone hold nothing."""
        self._forget(row.sequence_id)

    def _hold(self, sequence_id: str, table: tuple[int, ...]) -> None:
        before = self._tables.get(sequence_id, ())
        if before == table:
            return
        self._tables[sequence_id] = table
        for block in set(before).difference(table):
            self._holders[block].discard(sequence_id)
        for block in set(table).difference(before):
            self._holders.setdefault(block, set()).add(sequence_id)

    def _forget(self, sequence_id: str) -> None:
        self._hold(sequence_id, ())
        self._tables.pop(sequence_id, None)


def _check_columns(step: Step, sequences: dict[str, _Sequence]) -> None:
    rows = len(step.sequence_ids)
    columns = (step.num_tokens, step.starts, step.block_tables)
    assert all(len(column) == rows for column in columns), "the columns are of different lengths"
    assert len(set(step.sequence_ids)) == rows, "a sequence stands in the step twice"
    assert 0 <= step.num_decodes <= rows, f"of {rows} rows, {step.num_decodes} are to decode"
    for sequence_id, table in zip(step.sequence_ids, step.block_tables, strict=True):
        assert sequence_id in sequences, f"{sequence_id} was not added"
        assert len(set(table)) == len(table), f"{sequence_id} has a block twice"
    for sequence_id in step.drafts:
        assert sequence_id in step.sequence_ids, f"{sequence_id} has drafts, but is in no row"


def _check_extent(row: _Sequence, *, start: int, end: int, num_drafts: int) -> None:
    name = row.sequence_id
    assert end > start, f"{name} computes nothing"
    assert start >= row.num_computed, (
        f"{name} starts at {start}, but {row.num_computed} tokens are computed"
    )
    assert start < row.num_known, f"{name} starts at {start} and knows {row.num_known} tokens"
    assert end - num_drafts <= row.num_known, f"{name} computes tokens that it does not know"
    assert not num_drafts or end - num_drafts == row.num_known, (
        f"{name} has drafts, but known tokens are left"
    )


def _check_decode(row: _Sequence, *, start: int, num_tokens: int, drafts: Sequence[int]) -> None:
    name = row.sequence_id
    assert start + 1 == row.num_known, f"{name} decodes, but known tokens are left"
    assert num_tokens == 1 + len(drafts), f"{name} decodes {num_tokens} tokens"


def _check_targets(copies: Iterable[BlockCopy], kind: str) -> None:
    targets = [copy.target for copy in copies]
    assert len(targets) == len(set(targets)), f"a {kind} block is the target of two copies"


def _candidates_of(row: _Sequence) -> list[Candidate]:
    """The tokens 0 … 2 · width−1, with log-probabilities made up from the beam's tokens.

    The beam's own tokens decide the order, so beams overtake each other, fork and die out.
    """
    sampling = row.request.sampling
    barred = row.request.stop_token_ids if len(row.output) < sampling.min_tokens else ()
    history = 0
    for token in row.output:
        history = _after(history, token)
    made_up = [
        Candidate(token_id, -(1 + _after(history, token_id) % 1000) / 256)
        for token_id in range(2 * sampling.num_sequences)
        if token_id not in barred
    ]
    return sorted(made_up, key=lambda candidate: (-candidate.logprob, candidate.token_id))


def _prompt_history(request: Request, ledger: _Ledger | None) -> list[int] | None:
    if ledger is None:
        return None
    # Other salts make other histories: such requests share no block.
    history = crc32(request.cache_salt.encode())
    histories = []
    for token in request.prompt_token_ids:
        history = _after(history, token)
        histories.append(history)
    return histories


def _after(history: int, token: int) -> int:
    """The history of a token that follows on another one's."""
    return hash((history, token))


def _common(left: list[int], right: list[int]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (token, other) in pairs if token != other), min(len(left), len(right)))
