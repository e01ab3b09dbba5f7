"""How many KV blocks a replica's memory holds; arithmetic only."""

from dataclasses import dataclass
from typing import Final, Self

from tandem_engine.api.errors import ConfigError

GIB: Final = 2**30
# Copies of the [tokens, hidden] and [tokens, MLP] activations that live at the same time in a
# layer: residual, normed, q/k/v, attention output; gate and up, their product.
_HIDDEN_COPIES: Final = 6
_MLP_COPIES: Final = 3
# float32 copies of the logits that sampling may hold at once, with every filter and penalty on:
# measured 14.6 beside the logits themselves (sorted values and int64 order, float64 sums, counts).
_LOGITS_COPIES: Final = 16
_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model that decide on its memory."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    kv_bytes_per_token: int
    """2 · layers · KV heads · head size · bytes of the type (MHA, GQA and MQA alike)."""
    dtype_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The KV cache of one replica."""

    num_blocks: int
    block_size: int
    max_seq_len: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def checked(self, shape: ModelShape, *, available: int, activations: int) -> Self:
        """Itself, unless not even one sequence of the longest length fits.

        Raises:
            ConfigError: it does not; the text says what is left of the memory, and what to change.
        """
        if self.max_sequences >= 1:
            return self
        needed = self.max_seq_len * shape.kv_bytes_per_token
        raise ConfigError(
            f"The KV cache has room for {self.num_tokens} tokens, one sequence of maxSeqLen "
            f"{self.max_seq_len} needs {needed / GIB:.2f} GiB: {available / GIB:.2f} GiB are left "
            f"after the weights, of which the largest step takes {activations / GIB:.2f} GiB; "
            f"raise resources.memory or npuMemSize, or lower maxSeqLen, maxPrefillTokens or "
            f"maxBatchSize."
        )

    @property
    def max_sequences(self) -> int:
        """Sequences of the longest length that fit at once."""
        return self.num_blocks // -(-self.max_seq_len // self.block_size)


def activation_bytes(shape: ModelShape, *, step_tokens: int, rows: int) -> int:
    """Bytes that the largest step needs beside weights and KV cache.

    Args:
        shape: The model.
        step_tokens: Tokens of that step.
        rows: Rows of it that yield a token, hence need logits.
    """
    wide = _HIDDEN_COPIES * shape.hidden_size + _MLP_COPIES * shape.intermediate_size
    layer = step_tokens * wide * shape.dtype_bytes
    return layer + rows * shape.vocab_size * _FLOAT32_BYTES * _LOGITS_COPIES


def size_by_memory(
    shape: ModelShape, *, block_size: int, max_seq_len: int, available: int, activations: int
) -> Capacity:
    """The cache that fits into `available` bytes after `activations` (npuMemSize −1).

    Raises:
        ConfigError: not even one sequence of the longest length fits.
    """
    num_blocks = max(0, available - activations) // (shape.kv_bytes_per_token * block_size)
    capacity = Capacity(num_blocks=num_blocks, block_size=block_size, max_seq_len=max_seq_len)
    return capacity.checked(shape, available=available, activations=activations)


def size_by_gib(
    shape: ModelShape,
    *,
    block_size: int,
    max_seq_len: int,
    gib: int,
    available: int,
    activations: int,
) -> Capacity:
    """The cache of a given size in GiB (npuMemSize > 0).

    Raises:
        ConfigError: the memory has no room for it beside the largest step, or it has none for a
            single sequence of the longest length.
    """
    left = max(0, available - activations)
    if gib * GIB > left:
        raise ConfigError(
            f"npuMemSize is {gib} GiB, but weights and the largest step leave {left / GIB:.2f} GiB "
            f"of this replica's memory; lower it, raise resources.memory, or set -1 to take what "
            f"is left."
        )
    num_blocks = gib * GIB // (shape.kv_bytes_per_token * block_size)
    capacity = Capacity(num_blocks=num_blocks, block_size=block_size, max_seq_len=max_seq_len)
    return capacity.checked(shape, available=gib * GIB, activations=0)
