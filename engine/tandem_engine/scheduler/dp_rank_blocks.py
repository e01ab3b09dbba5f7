"""The KV blocks of one dp rank: shared prefixes, growth, copies on write, swaps."""

from collections.abc import Iterable
from typing import NamedTuple

from tandem_engine.api.step import BlockCopy
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.keys import split_keys
from tandem_engine.kvcache.pending_blocks import PendingBlocks
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.sequence import Sequence, SequenceGroup, State, fork_of


class Copies(NamedTuple):
    """The copies of one step; see `tandem_engine.api.step.Step`."""

    swapped_out: list[BlockCopy]
    swapped_in: list[BlockCopy]
    copied: list[BlockCopy]


class DPRankBlocks:
    """Gives sequences their blocks and takes them back; notes the copies that a step must make.

    Args:
        pool: The blocks of the dp rank.
        host: Its blocks for sequences that are swapped out.
    """

    def __init__(self, pool: BlockPool, host: HostPool) -> None:
        self.pool = pool
        self.host = host
        self.no_evict = False
        """Admit no request whose blocks are not certain, up to its last token."""
        self._pending = PendingBlocks()
        # Blocks that all admitted requests need at most.
        self._footprint = 0
        self._copies = Copies([], [], [])
        self._short: dict[Sequence, None] = {}
        self.num_queried_tokens = 0
        """Tokens of all sequences that were admitted, since the start."""
        self.num_hit_tokens = 0
        """Those of them that the prefix cache had."""

    def take_copies(self) -> Copies:
        """Return the copies noted since the last call, once."""
        taken, self._copies = self._copies, Copies([], [], [])
        # Held until here: a new holder could write into such a block before it is read.
        self.pool.release(copy.source for copy in taken.copied)
        return taken

    def find_room(self, sequence: Sequence, *, watermark: int) -> list[int] | Reason:
        """Find the blocks that it can share if it starts here, or the reason that it cannot.

        The whole prompt is reserved at once: sequences that hold half of what they need and wait
        for each other's blocks cannot come about.

        Args:
            sequence: One that holds no blocks.
            watermark: Blocks that must stay free beside its own, unless all are.
        """
        if not self._fits_for_life(sequence.group):
            return Reason.NO_BLOCKS
        pool = self.pool
        hits = self.find(sequence)
        if self._is_prefix_pending(sequence, len(hits)):
            return Reason.PREFIX_PENDING
        if sequence.group.beams:
            common = sequence.num_prompt // pool.block_size
            of_beam = self._prompt_of_beam(sequence)
            if of_beam is not None and len(hits) < common:
                if len(of_beam) < common:
                    return Reason.PREFIX_PENDING
                hits = list(of_beam)
        own = pool.blocks_for(sequence.num_tokens) - len(hits)
        spare = watermark if pool.num_held else 0
        # A prompt that is there to its last token writes that one into a copy of its block.
        if pool.num_free - pool.num_unheld(hits) < max(1, own) + spare:
            return Reason.NO_BLOCKS
        return hits

    def start(self, sequence: Sequence, hits: list[int]) -> None:
        """Reserve blocks for all known tokens of a sequence, and share those of `find_room`."""
        pool = self.pool
        own = pool.blocks_for(sequence.num_tokens) - len(hits)
        pool.share(hits)
        self._take(sequence, (*hits, *pool.allocate(own)), len(hits))
        self._count_hit(sequence, len(hits))

    def find(self, sequence: Sequence) -> list[int]:
        """Blocks that the prefix cache has of a waiting sequence, from its first token on."""
        if not sequence.keys or sequence.is_scored:
            return []
        return self.pool.find(split_keys(sequence.keys))

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that it lacks to have slots for `num_tokens` tokens and write into them."""
        more = self.pool.blocks_for(num_tokens) - len(sequence.table)
        return max(0, more) + self._copies_on_write(sequence)

    def note_short(self, sequence: Sequence) -> None:
        """List a sequence if it is short of a block, so that no step searches through all."""
        if sequence.is_short:
            self._short[sequence] = None

    def short(self) -> list[Sequence]:
        """The running sequences that are short of a block, decoding or not."""
        self._short = {
            sequence: None
            for sequence in self._short
            if sequence.is_short and sequence.state is State.RUNNING
        }
        return list(self._short)

    def suffice(self) -> bool:
        """Return True if all running sequences have blocks for their known tokens."""
        return self.hold(self.short())

    def hold(self, sequences: Iterable[Sequence]) -> bool:
        """Return True if there are blocks for the known tokens of some running sequences."""
        needed = sum(self.missing(sequence, sequence.num_tokens) for sequence in sequences)
        return needed <= self.pool.num_free

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give it slots for `num_tokens` tokens, and a block of its own to write into."""
        if sequence.writes_shared:
            self._copy_on_write(sequence)
        more = self.pool.blocks_for(num_tokens) - len(sequence.table)
        if more > 0:
            sequence.table += tuple(self.pool.allocate(more))
            sequence.capacity = len(sequence.table) * self.pool.block_size

    def trim(self, sequence: Sequence) -> None:
        """Take back the blocks behind its known tokens, which refused drafts have left."""
        needed = self.pool.blocks_for(sequence.num_tokens)
        surplus = sequence.table[needed:]
        if surplus:
            sequence.table = sequence.table[:needed]
            sequence.capacity = needed * self.pool.block_size
            self.pool.release(surplus)

    def drop(self, sequence: Sequence) -> None:
        """Take all that it holds; what was computed has to be computed again."""
        self.host.release(sequence.host_table)
        sequence.host_table = ()
        blocks = sequence.forget_cache()
        self._cancel_copies(blocks)
        self.pool.release(blocks)
        self._pending.cancel(sequence.sequence_id)

    def swap_out(self, sequence: Sequence) -> bool:
        """Move its computed tokens to the host; False: the host is full, nothing happened."""
        used = self.pool.blocks_for(sequence.num_computed)
        if not 0 < used <= self.host.num_free:
            return False
        num_computed, host_table = sequence.num_computed, tuple(self.host.allocate(used))
        # The content about to be copied into a block is still in the other one.
        content = {copy.target: copy.source for copy in self._copies.copied}
        sources = [content.get(block, block) for block in sequence.table[:used]]
        self._copies.swapped_out.extend(map(BlockCopy, sources, host_table))
        self.drop(sequence)
        sequence.host_table = host_table
        sequence.hold(num_computed)
        return True

    def swap_in(self, sequence: Sequence, *, watermark: int) -> bool:
        """Bring it back from the host; False: there are no blocks for it.

        Args:
            sequence: One that is swapped out.
            watermark: Blocks that must stay free beside its own, unless all are.
        """
        needed = self.pool.blocks_for(sequence.num_tokens)
        if self.pool.num_free < needed + (watermark if self.pool.num_held else 0):
            return False
        table, host_table = tuple(self.pool.allocate(needed)), sequence.host_table
        self._copies.swapped_in.extend(map(BlockCopy, host_table, table))
        self.host.release(host_table)
        sequence.host_table = ()
        self._take(sequence, table)
        return True

    def fork(self, sequence: Sequence, sequence_id: str) -> Sequence:
        """Another sequence with the same tokens in the same blocks."""
        child = fork_of(sequence, sequence_id)
        self.adopt(child, sequence)
        return child

    def adopt(self, sequence: Sequence, parent: Sequence) -> None:
        """Let a sequence that holds nothing share all that `parent` has computed."""
        used = self.pool.blocks_for(parent.num_computed)
        table = parent.table[:used]
        self.pool.share(table)
        self._take(sequence, table, parent.num_sealed)
        sequence.hold(parent.num_computed)
        if parent.num_computed % self.pool.block_size:
            # The first to write gets a copy; the last one finds the block its own again.
            sequence.writes_shared = parent.writes_shared = True
            self.note_short(sequence)
            self.note_short(parent)

    def seal(self, sequence: Sequence) -> None:
        """Make the full and computed blocks findable by content."""
        full = min(sequence.num_computed // self.pool.block_size, sequence.num_keys)
        for block in range(sequence.num_sealed, full):
            key = sequence.key(block)
            self.pool.seal(sequence.table[block], key)
            self._pending.complete(key)
        self._note_sealed(sequence, full)
        if sequence.num_uncomputed <= 1:
            self._pending.cancel(sequence.sequence_id)

    def switch_prefix_cache(self, *, on: bool) -> None:
        """Cache blocks by content from now on, or forget the cached ones."""
        if self.pool.caches_prefixes != on:
            self.pool.caches_prefixes = on
            self._pending.clear()

    def admit(self, group: SequenceGroup) -> None:
        """Count what the sequences of a request will need at most."""
        self._footprint += self._footprint_of(group)

    def leave(self, group: SequenceGroup) -> None:
        """Stop counting it."""
        self._footprint -= self._footprint_of(group)

    def can_ever_hold(self, group: SequenceGroup) -> bool:
        """Return True if the pool holds its sequences, alone and to their last token.

        Choices may run one after another, unless noEvict is set; beams may not.
        """
        one_by_one = group.search is None and not self.no_evict
        rows = 1 if one_by_one else len(group.request.sequences)
        return self._footprint_of(group, rows) <= self.pool.num_blocks

    def _take(self, sequence: Sequence, table: tuple[int, ...], num_sealed: int = 0) -> None:
        sequence.table = table
        sequence.begin_tail()
        self._note_sealed(sequence, num_sealed)
        sequence.capacity = len(table) * self.pool.block_size

    def _note_sealed(self, sequence: Sequence, num_sealed: int) -> None:
        sequence.num_sealed = num_sealed
        sequence.tokens_until_check = 0
        if sequence.keeps_keys:
            sequence.next_seal = (num_sealed + 1) * self.pool.block_size

    def _count_hit(self, sequence: Sequence, num_found: int) -> None:
        # At least the newest token is computed again, for its logits.
        hit = min(num_found * self.pool.block_size, sequence.num_tokens - 1)
        sequence.hold(hit)
        sequence.num_hit = hit
        sequence.writes_shared = hit < num_found * self.pool.block_size
        self.note_short(sequence)
        self.num_queried_tokens += sequence.num_tokens
        self.num_hit_tokens += hit
        for block in range(num_found, sequence.num_keys):
            self._pending.add(sequence.key(block), sequence.sequence_id)

    def _is_prefix_pending(self, sequence: Sequence, num_found: int) -> bool:
        """Return True if a running sequence computes the next block of this one too."""
        if num_found >= sequence.num_keys or sequence.is_scored:
            return False
        return self._pending.owner_of(sequence.key(num_found)) is not None

    def _prompt_of_beam(self, sequence: Sequence) -> tuple[int, ...] | None:
        """Full blocks of the prompt that another beam has computed; None: no other one runs.

        Beams that are computed again share their prompt whether prefixes are kept or not: apart
        they could need more blocks than there are.
        """
        others = [beam for beam in sequence.group.beams.values() if beam.table]
        if not others:
            return None
        first = max(others, key=lambda beam: beam.num_computed)
        full = min(first.num_computed, sequence.num_prompt) // self.pool.block_size
        return first.table[:full]

    def _copies_on_write(self, sequence: Sequence) -> int:
        if not sequence.writes_shared:
            return 0
        written = sequence.num_computed // self.pool.block_size
        return int(self.pool.is_shared(sequence.table[written]))

    def _copy_on_write(self, sequence: Sequence) -> None:
        sequence.writes_shared = False
        at = sequence.num_computed // self.pool.block_size
        shared = sequence.table[at]
        if self.pool.is_shared(shared):
            (own,) = self.pool.allocate(1)
            self._copies.copied.append(BlockCopy(shared, own))
            sequence.table = (*sequence.table[:at], own, *sequence.table[at + 1 :])

    def _cancel_copies(self, blocks: tuple[int, ...]) -> None:
        """Drop the copies into blocks that are given back before anything was copied."""
        copies = self._copies
        if not copies.copied and not copies.swapped_in:
            return
        given_back = set(blocks)
        self.pool.release(copy.source for copy in copies.copied if copy.target in given_back)
        for of_kind in (copies.copied, copies.swapped_in):
            of_kind[:] = [copy for copy in of_kind if copy.target not in given_back]

    def _fits_for_life(self, group: SequenceGroup) -> bool:
        # Those that are counted, or alone, have only this to wait for: no_evict came after them.
        if not self.no_evict or group.is_admitted or not self.pool.num_held:
            return True
        return self._footprint + self._footprint_of(group) <= self.pool.num_blocks

    def _footprint_of(self, group: SequenceGroup, rows: int | None = None) -> int:
        """Blocks of its sequences at their longest; they share the full blocks of the prompt.

        What is copied is held beside its copies for a moment: the end of the prompt of choices,
        and at worst one block for two beams.
        """
        request = group.request
        rows = rows or len(request.sequences)
        num_prompt = len(request.prompt_token_ids)
        common = num_prompt // self.pool.block_size
        longest = self.pool.blocks_for(num_prompt + request.max_new_tokens)
        copied = rows // 2 if group.search is not None else int(rows > 1)
        return common + rows * (longest - common) + copied
