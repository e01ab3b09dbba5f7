"""The pool of KV blocks. A block is free or held by exactly one sequence."""

from collections.abc import Iterable

from tandem_engine.api.errors import EngineError


class OutOfBlocks(EngineError):
    """More blocks were asked for than are free; ask `num_free` first."""


class BlockPool:
    """Hands out block ids 0 … num_blocks−1 and takes them back.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens in a block (MindIE cacheBlockSize).
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block given back last is the one most likely still in a CPU cache,
        # and pages of the cache that were never needed are never touched.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held = [False] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that some sequence holds, counted apart from the free ones."""
        return sum(self._held)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, or none at all.

        Raises:
            OutOfBlocks: fewer are free.
        """
        if count > len(self._free):
            raise OutOfBlocks(f"{count} KV blocks were asked for, {len(self._free)} are free.")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._held[block] = True
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Take blocks back."""
        for block in blocks:
            if not self._held[block]:
                raise AssertionError(f"KV block {block} is given back twice; this is a bug.")
            self._held[block] = False
            self._free.append(block)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and none both."""
        if self.num_free + self.num_held != self.num_blocks:
            raise AssertionError(
                f"{self.num_free} free and {self.num_held} held KV blocks do not make "
                f"{self.num_blocks}; this is a bug."
            )
        if any(self._held[block] for block in self._free):
            raise AssertionError("A KV block is free and held at once; this is a bug.")
