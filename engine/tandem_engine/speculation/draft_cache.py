"""The KV cache of a draft model: which tokens of which sequences it holds, and in which blocks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

IDLE_ROUNDS: Final = 32
"""Rounds after which a sequence that is in none of them may lose its blocks."""


@dataclass(slots=True)
class _Cached:
    """What the cache holds of one sequence."""

    num_sure: int = 0
    """Tokens that are the sequence's own, from its first on."""
    drafts: list[int] = field(default_factory=list)
    """The guesses behind them; all but the last are in the cache."""
    blocks: list[int] = field(default_factory=list)
    round: int = 0
    """The last one that it was drafted for in."""


class DraftCache:
    """Blocks of sequences; those that were not drafted for lately give theirs to others.

    Others keep theirs: what is taken has to be computed again, so sequences that take turns would
    compute their prompts over and over. A sequence has blocks of its own only: a draft model is
    fast enough to compute a prefix again.

    Args:
        num_blocks: KV blocks of the draft model.
        block_size: Tokens of a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks, self._block_size = num_blocks, block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        # The ones that were used last come last.
        self._cached: dict[str, _Cached] = {}
        self._round = 0

    @property
    def num_free(self) -> int:
        """Blocks that no sequence has."""
        return len(self._free)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._cached

    def begin_round(self) -> None:
        """Take note that sequences are about to be drafted for."""
        self._round += 1

    def follow(self, sequence_id: str, num_prompt: int, output: Sequence[int]) -> int:
        """Keep what is right of the guesses, and return the tokens that need not be computed.

        Args:
            sequence_id: Any.
            num_prompt: Tokens of its prompt.
            output: Its tokens behind it; they only grow.

        Returns:
            Fewer than it has: its last token is computed to guess the next one.
        """
        cached = self._cached.pop(sequence_id, None) or _Cached()
        self._cached[sequence_id] = cached
        cached.round = self._round
        num_known = num_prompt + len(output)
        if num_known > cached.num_sure:
            news = output[max(0, cached.num_sure - num_prompt) :]
            in_cache = cached.drafts[:-1] if cached.num_sure >= num_prompt else []
            cached.num_sure += _num_alike(in_cache, news)
            cached.drafts = []
        return min(cached.num_sure, num_known - 1)

    def known_drafts(self, sequence_id: str, num_known: int) -> Sequence[int]:
        """Return guesses that were made before behind the same tokens, where no token has come."""
        cached = self._cached.get(sequence_id)
        return cached.drafts if cached is not None and cached.num_sure == num_known else ()

    def reserve(self, sequence_id: str, num_tokens: int, busy: Collection[str]) -> Sequence[int]:
        """Return the blocks of a sequence, enough for so many tokens; none: there are not.

        Args:
            sequence_id: One that `follow` knows.
            num_tokens: Tokens that it will have, guesses included.
            busy: Sequences that keep theirs.
        """
        cached = self._cached[sequence_id]
        missing = -(-num_tokens // self._block_size) - len(cached.blocks)
        if missing > len(self._free):
            self._evict(missing - len(self._free), busy)
        if missing > len(self._free):
            return ()
        cached.blocks += [self._free.pop() for _ in range(missing)]
        return cached.blocks

    def note(self, sequence_id: str, num_sure: int, drafts: Sequence[int] = ()) -> None:
        """Note that so many of its own tokens are computed, and the guesses behind them."""
        cached = self._cached[sequence_id]
        cached.num_sure, cached.drafts = num_sure, list(drafts)

    def forget(self, sequence_id: str) -> None:
        """Free the blocks of a sequence; an unknown one is ignored."""
        cached = self._cached.pop(sequence_id, None)
        if cached is not None:
            self._free += cached.blocks

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost or held twice."""
        held = [block for cached in self._cached.values() for block in cached.blocks]
        if sorted(held + self._free) != list(range(self._num_blocks)):
            raise AssertionError("A block of the draft model is lost or held twice; this is a bug.")

    def _evict(self, missing: int, busy: Collection[str]) -> None:
        """Take the blocks of sequences that were not used for longest, until enough are free."""
        for sequence_id in [name for name in self._cached if name not in busy]:
            if missing <= 0 or self._round - self._cached[sequence_id].round < IDLE_ROUNDS:
                return
            missing -= len(self._cached[sequence_id].blocks)
            self.forget(sequence_id)


def _num_alike(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of tokens from the first on that are the same."""
    count = 0
    for token, other in zip(some, others, strict=False):
        if token != other:
            return count
        count += 1
    return count
