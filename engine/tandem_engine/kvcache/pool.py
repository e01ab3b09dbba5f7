"""The pool of KV blocks, with holders and with blocks cached for their content: ids, no tensors.

The paged KV cache is that of PagedAttention (Kwon et al., 2023). Full blocks are found again by
the hash of all tokens up to their end, as in vLLM's automatic prefix caching; MindIE calls it
`plugin_type: prefix_cache`, and its unit is cacheBlockSize too.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import ClassVar, Final

from tandem_engine.api.errors import EngineError
from tandem_engine.kvcache.keys import KEY_BYTES

# Seven: the largest number that Python keeps in two digits, 32 bytes in all, has 60 bits.
_INDEX_BYTES: Final = 7


class OutOfBlocks(EngineError):
    """More blocks were requested than are free; read `num_free` first."""


class CountedBlocks:
    """Block ids first … first+num_blocks−1, each with a count of its holders; none: it is free.

    Args:
        num_blocks: Blocks there are.
        first: The lowest id. The pools of several dp ranks share one range of ids.
    """

    kind: ClassVar[str] = "KV"
    """Name of the blocks in errors."""

    def __init__(self, num_blocks: int, *, first: int = 0) -> None:
        self.num_blocks = num_blocks
        self._ids = range(first, first + num_blocks)
        # A stack: the block given back last is the one most likely still in a CPU cache,
        # and pages of the cache that were never needed are never touched.
        self._empty = list(reversed(self._ids))
        # By id, those of lower pools included: they never have a holder here.
        self._holders = [0] * self._ids.stop
        self._num_held = 0

    @property
    def num_free(self) -> int:
        """Blocks that allocate() can give."""
        return len(self._empty)

    @property
    def num_held(self) -> int:
        """Blocks with at least one holder, counted apart from the free ones."""
        return self._num_held

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, one holder each, or none at all.

        Raises:
            OutOfBlocks: fewer are free.
        """
        empty = self._empty
        if count > len(empty):
            self._make_empty(count)
        if count <= 0:
            return []
        taken = empty[: -count - 1 : -1]
        del empty[-count:]
        holders = self._holders
        for block in taken:
            holders[block] = 1
        self._num_held += count
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Take one holder from each block, from the last block to the first.

        Raises:
            AssertionError: a block has no holder.
        """
        holders = self._holders
        freed: list[int] = []
        # From the end: a table given back and taken again comes in the same order, ascending
        # where it was, which copies and gathers like.
        for block in reversed(tuple(blocks)):
            left = holders[block] - 1
            if left < 0:
                raise AssertionError(
                    f"{self.kind} block {block} is given back twice; this is a bug."
                )
            holders[block] = left
            if not left:
                freed.append(block)
        self._num_held -= len(freed)
        self._set_free(freed)

    def check_integrity(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise AssertionError unless every block is either free or held.

        Args:
            tables: All block tables there are; the holders counted must be theirs.
        """
        held = {block: holders for block, holders in enumerate(self._holders) if holders}
        self._check_partition(self._free(), held.keys())
        if len(held) != self._num_held:
            raise AssertionError(
                f"{len(held)} {self.kind} blocks have holders, {self._num_held} were counted; "
                f"this is a bug."
            )
        if tables is not None:
            self._check_tables(Counter(chain.from_iterable(tables)), held)

    def _make_empty(self, count: int) -> None:
        """Empty `count` blocks, or raise OutOfBlocks."""
        raise OutOfBlocks(f"{count} {self.kind} blocks were requested, {self.num_free} are free.")

    def _set_free(self, blocks: list[int]) -> None:
        """Return blocks that lost their last holder to the free ones."""
        self._empty += blocks

    def _free(self) -> list[int]:
        """Return the blocks without a holder."""
        return list(self._empty)

    def _check_partition(self, free: list[int], held: Iterable[int]) -> None:
        counts = Counter(chain(free, held))
        for block in self._ids:
            if not counts[block]:
                raise AssertionError(f"{self.kind} block {block} is lost; this is a bug.")
            if counts[block] > 1:
                state = "free and held at once" if self._holders[block] else "free twice"
                raise AssertionError(f"{self.kind} block {block} is {state}; this is a bug.")
        if len(counts) != self.num_blocks:
            raise AssertionError(
                f"{len(counts)} {self.kind} blocks stand in a pool of {self.num_blocks}; "
                f"this is a bug."
            )

    def _check_tables(self, in_tables: Counter[int], held: dict[int, int]) -> None:
        for block in in_tables.keys() | held.keys():
            if in_tables[block] != held.get(block, 0):
                raise AssertionError(
                    f"{self.kind} block {block} stands in {in_tables[block]} block tables and has "
                    f"{held.get(block, 0)} holders; this is a bug."
                )


class BlockPool(CountedBlocks):
    """The blocks of the KV cache: shared by reference, found again by content.

      empty ── allocate ──► held ── seal ──► held and sealed ── release ──► cached
        ▲                    │                     ▲                        │   │
        ├────── release ─────┘                     └───────── share ────────┘   │
        └─────────────────────── evicted by allocate, forget ───────────────────┘

    Empty and cached blocks are free. allocate() takes the empty ones first, the one given back
    last before the others; then the cached ones, the one released longest ago first (LRU).

    A block is written only by a sequence that holds it alone and before it is sealed
    (`is_shared`); what stands in a sealed block stays as it is until the block is evicted.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens in a block (MindIE cacheBlockSize).
        caches_prefixes: True when blocks are kept for their content.
        first: The lowest id.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        caches_prefixes: bool = True,
        first: int = 0,
    ) -> None:
        super().__init__(num_blocks, first=first)
        self.block_size = block_size
        self.num_evictions = 0
        """Cached blocks that were evicted, since the start."""
        self._caches_prefixes = caches_prefixes
        # The keys of all blocks side by side, and whether a block has one: an object for each
        # would take more memory than all else that the scheduler keeps of a running request.
        # A view, because it refuses a key of another length.
        self._keys = memoryview(bytearray(self._ids.stop * KEY_BYTES))
        self._is_sealed = bytearray(self._ids.stop)
        # By the first bytes of the key; what is found there is compared in full.
        self._block_of: dict[int, int] = {}
        # Not a dict: to take the oldest entries off a dict again and again means to walk over
        # the gaps that the earlier ones left.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that allocate() can give: empty and cached ones."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks that are kept for their content."""
        return len(self._cached)

    @property
    def caches_prefixes(self) -> bool:
        """True if blocks are kept for their content; a live setting, switching off forgets."""
        return self._caches_prefixes

    @caches_prefixes.setter
    def caches_prefixes(self, enabled: bool) -> None:
        self._caches_prefixes = enabled
        if not enabled:
            self.forget()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def share(self, blocks: Iterable[int]) -> None:
        """Give each block one more holder; a cached block is held again.

        Raises:
            AssertionError: a block is empty, so there is nothing to share.
        """
        for block in blocks:
            holders = self._holders[block]
            if not holders:
                self._hold_again(block)
            self._holders[block] = holders + 1

    def seal(self, block: int, key: bytes) -> None:
        """Note that `block` is full and computed, and that `key` (keys.py) is what it holds.

        A key that another block has stays with that one: this block goes the way of all others
        when it is released. So it does where another key begins with the same _INDEX_BYTES, which
        costs a hit and nothing else. Nothing happens when `caches_prefixes` is off.

        Raises:
            AssertionError: the block has no holder, or it is sealed with another key.
            ValueError: the key has not KEY_BYTES bytes.
        """
        if not self._caches_prefixes:
            return
        known = self._key_of(block)
        if not self._holders[block] or (known is not None and known != key):
            raise AssertionError(f"KV block {block} is not the sealer's to seal; this is a bug.")
        self._keys[block * KEY_BYTES : (block + 1) * KEY_BYTES] = key
        if self._block_of.setdefault(_index_of(key), block) == block:
            self._is_sealed[block] = True

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest run of `keys`, from the first on, that are there.

        It does not hold them: share() them before the next allocate(), which may evict them.
        """
        hits: list[int] = []
        for key in keys:
            block = self._block_of.get(_index_of(key))
            if block is None or self._key_of(block) != key:
                break
            hits.append(block)
        return hits

    def num_unheld(self, blocks: Iterable[int]) -> int:
        """Count the `blocks` without a holder: share() will take so many from `num_free`."""
        return sum(not self._holders[block] for block in blocks)

    def is_shared(self, block: int) -> bool:
        """Return True if `block` must not be written: it is shared, or find() may return it."""
        return self._holders[block] > 1 or bool(self._is_sealed[block])

    def forget(self) -> None:
        """Drop all cached content; sealed blocks that are held lose their keys."""
        self._is_sealed = bytearray(self._ids.stop)
        self._block_of.clear()
        # Newest on top of the stack, as everywhere.
        self._empty += self._cached
        self._cached.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise AssertionError unless every block is free or held, and the index is right.

        Args:
            tables: The block tables of all sequences; the holders counted must be theirs.
        """
        super().check_integrity(tables)
        sealed = {block for block, is_sealed in enumerate(self._is_sealed) if is_sealed}
        keys = {
            _index_of(key): block for block in sealed if (key := self._key_of(block)) is not None
        }
        if keys != self._block_of:
            raise AssertionError(
                f"{len(keys)} KV blocks have keys of their own, the index knows "
                f"{len(self._block_of)}, or others; this is a bug."
            )
        # A block whose key is another block's is not in `keys`; both checks together see it.
        if len(sealed) != len(keys) or sealed & set(self._empty) or self._cached.keys() - sealed:
            raise AssertionError(
                "A KV block shares its key with another one, is empty and has a key, or is cached "
                "and has none; this is a bug."
            )

    def _make_empty(self, count: int) -> None:
        missing = count - len(self._empty)
        if missing > len(self._cached):
            super()._make_empty(count)
        self._evict(missing)

    def _evict(self, count: int) -> None:
        """Empty the `count` cached blocks that were released longest ago."""
        oldest = [self._cached.popitem(last=False)[0] for _ in range(count)]
        for block in oldest:
            self._drop_key(block)
        # At the bottom of the stack: the blocks that were empty go first.
        oldest.reverse()
        self._empty[:0] = oldest
        self.num_evictions += count

    def _drop_key(self, block: int) -> None:
        key = self._key_of(block)
        if key is not None:
            del self._block_of[_index_of(key)]
            self._is_sealed[block] = False

    def _key_of(self, block: int) -> bytes | None:
        if not self._is_sealed[block]:
            return None
        return bytes(self._keys[block * KEY_BYTES : (block + 1) * KEY_BYTES])

    def _hold_again(self, block: int) -> None:
        if block not in self._cached:
            raise AssertionError(f"KV block {block} is empty and cannot be shared; this is a bug.")
        del self._cached[block]
        self._num_held += 1

    def _set_free(self, blocks: list[int]) -> None:
        # release() goes from the last block to the first, so a sequence's tail is evicted before
        # its beginning: without its beginning a tail is never found.
        is_sealed, empty, cached = self._is_sealed, self._empty, self._cached
        for block in blocks:
            if is_sealed[block]:
                cached[block] = None
            else:
                empty.append(block)

    def _free(self) -> list[int]:
        return [*self._empty, *self._cached]


def _index_of(key: bytes) -> int:
    """Return the number that the index keeps a key under."""
    return int.from_bytes(key[:_INDEX_BYTES], "little")


def dp_pools(dp: int, num_blocks: int, block_size: int) -> tuple[BlockPool, ...]:
    """Return a pool for each dp rank; rank r has the ids r·num_blocks … (r+1)·num_blocks−1.

    Args:
        dp: Number of dp ranks.
        num_blocks: Blocks of each.
        block_size: Tokens in a block.
    """
    return tuple(BlockPool(num_blocks, block_size, first=rank * num_blocks) for rank in range(dp))
