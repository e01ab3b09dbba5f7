"""The KV blocks of all dp ranks, and the choice of the one that a request lives in.

With data parallelism of attention (MindIE dp, vLLM data_parallel_size) each dp rank has blocks and
a prefix cache of its own. All sequences of a request are in one dp rank: they share blocks. It is
chosen when the request starts; one that was preempted to be computed again may start in another one
if it is a single sequence. Swapped ones come back to where their host blocks are.
"""

from collections import abc
from collections.abc import Collection, Iterable

from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.dp_rank_blocks import Copies, DPRankBlocks
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence, SequenceGroup

_Home = tuple[DPRankBlocks, list[int]]
"""Where a sequence can start, and the blocks that it can share there."""


class KVBlocks:
    """Gives sequences their blocks, each in its dp rank; sums where a figure is of them all.

    Args:
        pools: The blocks of each dp rank, all of one size.
        hosts: Blocks of each for sequences that are swapped out.
    """

    def __init__(self, pools: abc.Sequence[BlockPool], hosts: abc.Sequence[HostPool]) -> None:
        self.dp_ranks = tuple(map(DPRankBlocks, pools, hosts))
        """By dp rank."""
        self.block_size = pools[0].block_size
        """Tokens in a block."""

    def of(self, sequence: Sequence) -> DPRankBlocks:
        """Return the blocks of the dp rank that a sequence is in, or was in last."""
        return self.dp_ranks[sequence.group.dp_rank]

    @property
    def num_blocks(self) -> int:
        """Blocks there are."""
        return sum([rank.pool.num_blocks for rank in self.dp_ranks])

    @property
    def num_free(self) -> int:
        """Blocks without a holder."""
        return sum([rank.pool.num_free for rank in self.dp_ranks])

    @property
    def most_free(self) -> int:
        """Blocks without a holder in the dp rank that has most of them."""
        return max([rank.pool.num_free for rank in self.dp_ranks])

    @property
    def caches_prefixes(self) -> bool:
        """True if blocks are kept for their content."""
        return self.dp_ranks[0].pool.caches_prefixes

    @property
    def num_queried_tokens(self) -> int:
        """Tokens of all sequences that were admitted, since the start."""
        return sum(rank.num_queried_tokens for rank in self.dp_ranks)

    @property
    def num_hit_tokens(self) -> int:
        """Those of them that the prefix cache had."""
        return sum(rank.num_hit_tokens for rank in self.dp_ranks)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def take_copies(self) -> Copies:
        """Return the copies noted since the last call, once."""
        first, *others = [rank.take_copies() for rank in self.dp_ranks]
        for copies in others:
            for all_of_kind, of_kind in zip(first, copies, strict=True):
                all_of_kind.extend(of_kind)
        return first

    def start(
        self, sequence: Sequence, *, watermark: int, closed: Collection[int] = ()
    ) -> Reason | None:
        """Reserve blocks for all known tokens of a sequence; return why not.

        Args:
            sequence: One that holds no blocks.
            watermark: Blocks that must stay free in its dp rank beside its own, unless all are.
            closed: dp ranks where sequences that were swapped out come first.
        """
        home = self._choose(sequence, watermark, closed)
        if isinstance(home, Reason):
            return home
        rank, hits = home
        self._move(sequence.group, self.dp_ranks.index(rank))
        rank.start(sequence, hits)
        return None

    def num_found(
        self, sequence: Sequence, *, watermark: int = 0, closed: Collection[int] = ()
    ) -> int:
        """Tokens of a waiting sequence that the prefix cache has where `start` would put it."""
        candidates = self._candidates(sequence)
        if len(candidates) == 1:
            return len(candidates[0].find(sequence)) * self.block_size
        home = self._choose(sequence, watermark, closed)
        return 0 if isinstance(home, Reason) else len(home[1]) * self.block_size

    def roomiest(self, sequence: Sequence) -> int:
        """Return the dp rank that is the next to have room for a waiting sequence."""
        candidates = self._candidates(sequence)
        best = max(candidates, key=lambda rank: _merit(rank, rank.find(sequence)))
        return self.dp_ranks.index(best)

    def is_bound(self, sequence: Sequence) -> bool:
        """Return True if a waiting sequence can start in its dp rank alone.

        Those of a request that was forked share blocks, perhaps even now.
        """
        group = sequence.group
        is_forked = len(group.request.sequences) > 1 and not group.pending_forks
        return len(self.dp_ranks) == 1 or (group.is_admitted and is_forked)

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that it lacks to have slots for `num_tokens` tokens and write into them."""
        return self.of(sequence).missing(sequence, num_tokens)

    def note_short(self, sequence: Sequence) -> None:
        """List a sequence if it is short of a block, so that no step searches through all."""
        if sequence.is_short:
            self.of(sequence).note_short(sequence)

    def short(self) -> list[Sequence]:
        """The running sequences that are short of a block, decoding or not."""
        return [sequence for rank in self.dp_ranks for sequence in rank.short()]

    def suffice(self) -> bool:
        """Return True if all running sequences have blocks for their known tokens."""
        return all(rank.suffice() for rank in self.dp_ranks)

    def hold(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Return True if there are blocks for the known tokens of some running sequences."""
        if len(self.dp_ranks) == 1:
            return self.dp_ranks[0].hold(sequences)
        return all(
            rank.hold(sequence for sequence in sequences if sequence.group.dp_rank == number)
            for number, rank in enumerate(self.dp_ranks)
        )

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give it slots for `num_tokens` tokens, and a block of its own to write into."""
        self.of(sequence).grow(sequence, num_tokens)

    def trim(self, sequence: Sequence) -> None:
        """Take back the blocks behind its known tokens, which refused drafts have left."""
        self.of(sequence).trim(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Take all that it holds; what was computed has to be computed again."""
        self.of(sequence).drop(sequence)

    def swap_out(self, sequence: Sequence) -> bool:
        """Move its computed tokens to the host; False: the host is full, nothing happened."""
        return self.of(sequence).swap_out(sequence)

    def swap_in(self, sequence: Sequence, *, watermark: int) -> bool:
        """Bring it back from the host; False: there are no blocks for it in its dp rank."""
        return self.of(sequence).swap_in(sequence, watermark=watermark)

    def fork(self, sequence: Sequence, sequence_id: str) -> Sequence:
        """Another sequence with the same tokens in the same blocks."""
        return self.of(sequence).fork(sequence, sequence_id)

    def seal(self, sequence: Sequence) -> None:
        """Make the full and computed blocks findable by content."""
        self.of(sequence).seal(sequence)

    def switch_prefix_cache(self, *, on: bool) -> None:
        """Cache blocks by content from now on, or forget the cached ones."""
        for rank in self.dp_ranks:
            rank.switch_prefix_cache(on=on)

    def switch_no_evict(self, *, on: bool) -> None:
        """Admit no request whose blocks are not certain, up to its last token; or any."""
        for rank in self.dp_ranks:
            rank.no_evict = on

    def admit(self, group: SequenceGroup) -> None:
        """Count what the sequences of a request will need at most."""
        self.dp_ranks[group.dp_rank].admit(group)

    def leave(self, group: SequenceGroup) -> None:
        """Stop counting it."""
        self.dp_ranks[group.dp_rank].leave(group)

    def can_ever_hold(self, group: SequenceGroup) -> bool:
        """Return True if a dp rank holds its sequences, alone and to their last token."""
        return self.dp_ranks[0].can_ever_hold(group)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError when a block is lost, or its holders are miscounted.

        Args:
            sequences: All that have not ended.
        """
        every = list(sequences)
        for number, rank in enumerate(self.dp_ranks):
            of_rank = [sequence for sequence in every if sequence.group.dp_rank == number]
            rank.pool.check_integrity([sequence.table for sequence in of_rank])
            rank.host.check_integrity()

    def _candidates(self, sequence: Sequence) -> abc.Sequence[DPRankBlocks]:
        """The dp ranks that a waiting sequence may start in."""
        return (self.of(sequence),) if self.is_bound(sequence) else self.dp_ranks

    def _choose(
        self, sequence: Sequence, watermark: int, closed: Collection[int]
    ) -> _Home | Reason:
        """Choose the dp rank for a sequence, of those that have room; or return why there is none.

        It waits for a beginning that another one computes only where no dp rank has room for
        computing it again: meanwhile that one would be idle.
        """
        best: _Home | None = None
        reason = Reason.SWAPPED_OUT
        for rank in self._candidates(sequence):
            if closed and self.dp_ranks.index(rank) in closed:
                continue
            room = rank.find_room(sequence, watermark=watermark)
            if isinstance(room, Reason):
                reason = reason if reason is Reason.PREFIX_PENDING else room
            elif best is None or _merit(rank, room) > _merit(*best):
                best = rank, room
        return reason if best is None else best

    def _move(self, group: SequenceGroup, dp_rank: int) -> None:
        """Let a request that holds nothing be in a dp rank."""
        if group.dp_rank == dp_rank:
            return
        if group.is_admitted:
            self.leave(group)
        group.dp_rank = dp_rank
        if group.is_admitted:
            self.admit(group)


def _merit(rank: DPRankBlocks, hits: abc.Sequence[int]) -> int:
    """Rate a dp rank for a sequence: the blocks that it leaves free, and those it need not compute.

    So rows spread by free blocks, and a prefix that is there outweighs a lead in free blocks that
    is shorter than it. The blocks that the sequence needs are the same everywhere: they do not
    count.
    """
    pool = rank.pool
    return pool.num_free - pool.num_unheld(hits) + 2 * len(hits)
