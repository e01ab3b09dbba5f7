"""The number of KV blocks that a replica's memory holds; arithmetic only.

memory for KV blocks = memory of the replica - process - weights - largest step
bytes of one token   = as `layout` says
sequences at once    = blocks of that memory // blocks of one sequence of the longest length
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.layout import CacheLayout

GIB: Final = 2**30
MAX_SCORED_ROWS: Final = 64
"""Rows whose logits are there at once where tokens of a prompt are scored (prompt_logprobs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Memory of steps beside weights and KV cache, in bytes; measured by `runner.profile`."""

    fixed: int
    """Of any step, and what the first one sets up."""
    per_token: int
    """Activations of a token."""
    per_row: int
    """Logits of a row that yields, and copies of them: where choices fork, or torch samples."""
    per_context: int = 0
    """Of a token in the cache, where attention copies a row's context out of it."""

    def __add__(self, other: "StepCost") -> "StepCost":
        """Return the memory of steps of two models, each of which keeps its own."""
        return StepCost(
            fixed=self.fixed + other.fixed,
            per_token=self.per_token + other.per_token,
            per_row=self.per_row + other.per_row,
            per_context=self.per_context + other.per_context,
        )

    def of(self, *, num_tokens: int, num_rows: int, context: int) -> int:
        """Bytes of a step.

        Args:
            num_tokens: Its tokens.
            num_rows: Its rows that yield.
            context: Tokens of the longest sequence in it.
        """
        return (
            self.fixed
            + num_tokens * self.per_token
            + num_rows * self.per_row
            + context * self.per_context
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The KV cache of one replica."""

    num_blocks: int
    block_size: int
    """Tokens of a block."""
    max_seq_len: int
    """Prompt and output of one sequence at most, in tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def checked(
        self, layout: CacheLayout, *, available: int, activations: int, is_on_card: bool = False
    ) -> Self:
        """Itself, unless not even one sequence of the longest length fits.

        Raises:
            ConfigError: it does not; the text says what is left of the memory, and what to change.
        """
        if self.max_sequences >= 1:
            return self
        needed = self.max_seq_len * layout.bytes_per_token
        raise ConfigError(
            f"The KV cache has room for {self.num_tokens} tokens, one sequence of maxSeqLen "
            f"{self.max_seq_len} needs {in_gib(needed)}: {in_gib(available)} are left "
            f"after the weights, of which the largest step takes {in_gib(activations)}; "
            f"{more_memory(is_on_card=is_on_card)}, raise npuMemSize, or lower maxSeqLen, "
            f"maxPrefillTokens or maxBatchSize."
        )

    @property
    def max_sequences(self) -> int:
        """Sequences of the longest length that fit at once."""
        return self.num_blocks // -(-self.max_seq_len // self.block_size)

    def in_words(
        self,
        *layouts: CacheLayout,
        num_dp: int = 1,
        num_host_blocks: int = 0,
        chosen: Sequence[str] = (),
    ) -> str:
        """The line that the log of the start and `tandem status` show, figures in front.

        Args:
            layouts: The KV cache of each rank.
            num_dp: Groups of ranks with a cache of their own.
            num_host_blocks: Blocks to swap to.
            chosen: Values below the model's limit or a default, because no more fits.
        """
        text = f"room for {_counted(self.max_sequences, 'sequence')} of {self.max_seq_len} tokens"
        if chosen:
            text += f", chosen to fit: {', '.join(chosen)}"
        host = f", {_counted(num_host_blocks, 'host block')} to swap to" if num_host_blocks else ""
        of_all = sum(layout.bytes_per_token for layout in layouts)
        size = in_gib(self.num_tokens * of_all)
        if len(layouts) > 1:
            size += f" on {len(layouts)} ranks"
        return (
            f"KV cache: {_counted(self.num_blocks, 'block')} of {self.block_size} tokens, "
            f"{text}{host} ({size}, {of_all // num_dp} bytes a token in {layouts[0].dtype})"
        )


def size_by_memory(
    layout: CacheLayout,
    *,
    max_seq_len: int,
    available: int,
    activations: int,
    is_on_card: bool = False,
) -> Capacity:
    """The cache that fits into `available` bytes after `activations` (npuMemSize −1).

    Raises:
        ConfigError: not even one sequence of the longest length fits.
    """
    num_blocks = max(0, available - activations) // layout.block_bytes
    capacity = Capacity(
        num_blocks=num_blocks, block_size=layout.block_size, max_seq_len=max_seq_len
    )
    return capacity.checked(
        layout, available=available, activations=activations, is_on_card=is_on_card
    )


def size_by_gib(
    layout: CacheLayout,
    *,
    max_seq_len: int,
    gib: int,
    available: int,
    activations: int,
    num_ranks: int = 1,
    is_on_card: bool = False,
) -> Capacity:
    """The cache of a given size in GiB (npuMemSize > 0), of which each rank has an equal share.

    Raises:
        ConfigError: the memory has no room for it beside the largest step, or it has none for a
            single sequence of the longest length.
    """
    left, share = max(0, available - activations), gib * GIB // num_ranks
    if share > left:
        raise ConfigError(
            f"npuMemSize is {_shared(gib, num_ranks)}, but weights and the largest step leave "
            f"{in_gib(left)} of this {_owner(num_ranks)}'s memory; lower it, "
            f"{more_memory(is_on_card=is_on_card)}, or set -1 to take what is left."
        )
    num_blocks = share // layout.block_bytes
    capacity = Capacity(
        num_blocks=num_blocks, block_size=layout.block_size, max_seq_len=max_seq_len
    )
    return capacity.checked(layout, available=share, activations=0, is_on_card=is_on_card)


def size_host(layout: CacheLayout, *, gib: int, available: int, num_ranks: int = 1) -> int:
    """Blocks in host memory for sequences that are swapped out (MindIE cpuMemSize).

    Args:
        layout: The KV cache.
        gib: cpuMemSize; 0: nothing is swapped.
        available: Bytes of host memory that are left. On a CPU that is the memory that weights,
            the largest step and the KV blocks leave.
        num_ranks: Ranks that share what was asked for.

    Raises:
        ConfigError: the host has less, or a block is larger than what was asked for.
    """
    share = gib * GIB // num_ranks
    if share > max(0, available):
        raise ConfigError(
            f"cpuMemSize is {_shared(gib, num_ranks)}, but {in_gib(max(0, available))} of host "
            f"memory are left; lower it, raise resources.memory, or set 0 to compute pre-empted "
            f"sequences again instead of swapping them."
        )
    num_blocks = share // layout.host_block_bytes
    if gib and not num_blocks:
        raise ConfigError(
            f"cpuMemSize is {_shared(gib, num_ranks)}, but one block of {layout.block_size} tokens "
            f"takes {in_gib(layout.host_block_bytes)}; raise it, or lower cacheBlockSize."
        )
    return num_blocks


def more_memory(*, is_on_card: bool) -> str:
    """The way to more memory for weights, steps and KV cache, as a part of a sentence."""
    return "take a card with more memory" if is_on_card else "raise resources.memory"


def in_gib(num_bytes: int) -> str:
    """Bytes for people; small ones in MiB, as they would be 0.00 GiB."""
    if num_bytes < GIB // 10:
        return f"{num_bytes / 2**20:.2f} MiB"
    return f"{num_bytes / GIB:.2f} GiB"


def _shared(gib: int, num_ranks: int) -> str:
    if num_ranks == 1:
        return f"{gib} GiB"
    return f"{gib} GiB, {in_gib(gib * GIB // num_ranks)} a rank"


def _owner(num_ranks: int) -> str:
    return "replica" if num_ranks == 1 else "rank"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
