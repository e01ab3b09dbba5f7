"""Shape and bytes of the KV cache of one group of layers; arithmetic only.

    bytes of one token = 2 · layers · KV heads · (head size · bytes of the type + of its scale)

The 2 stands for keys and values. The number of KV heads tells MHA (as many as query
heads), GQA (fewer) and MQA (one) apart: Llama 3 with 8 KV heads for 32 query heads keeps four
times as many tokens as Llama 2 in the same memory. Only a cache in 8 bits has scales, of 4 bytes:
a head of 128 takes 132 bytes, and 256 in bfloat16, so 1.94 times as many blocks fit.

A layout is of layers whose cache looks alike. A rank of several has a layout with fewer layers or
fewer KV heads; so it needs no other code to allocate, size, copy and swap its blocks.
"""

from dataclasses import dataclass
from typing import Final

from tandem_engine.api.errors import ConfigError

DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Types of a KV cache, and the bytes of a value."""
SCALE_BYTES: Final = 4
"""Bytes of a token and KV head beside its values in 8 bits: a float32; see `device.kv_int8`."""
MOST_INT8_HEAD_DIM: Final = 512
"""The sums of kernels that multiply in integers fit 32 bits up to here."""
_KEYS_AND_VALUES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """The KV cache of a group of layers that one rank holds.

    Raises:
        ConfigError: A head of this size cannot be in 8 bits.
    """

    num_layers: int
    num_kv_heads: int
    """Of each layer; on several ranks those of the rank."""
    head_dim: int
    """Values of a head."""
    dtype: str
    """One of DTYPE_BYTES."""
    block_size: int
    """Tokens of a block."""
    beside: int = 0
    """Bytes of a token in the cache of a draft model, which has as many blocks of its own."""

    def __post_init__(self) -> None:
        if not self.is_int8:
            return
        if self.head_dim % SCALE_BYTES or self.head_dim > MOST_INT8_HEAD_DIM:
            raise ConfigError(
                f"kvCacheDtype is int8, which needs heads whose size is a multiple of "
                f"{SCALE_BYTES} up to {MOST_INT8_HEAD_DIM}; this model's have {self.head_dim}. "
                "Leave kvCacheDtype out."
            )

    @property
    def is_int8(self) -> bool:
        """True if values are in 8 bits, with scales behind them."""
        return self.dtype == "int8"

    @property
    def values_per_token(self) -> int:
        """Values of K and V of one token in all layers: its bytes in 8 bits, scales left out."""
        return _KEYS_AND_VALUES * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes that K and V of one token take in all layers, and in a draft model's."""
        rows = _KEYS_AND_VALUES * self.num_layers * self.num_kv_heads
        return rows * self.row_elements * DTYPE_BYTES[self.dtype] + self.beside

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers, and of one of a draft model."""
        return self.bytes_per_token * self.block_size

    @property
    def row_elements(self) -> int:
        """Size of one token and KV head, in elements of `dtype`; its scale counted in."""
        return self.head_dim + (SCALE_BYTES if self.is_int8 else 0)

    @property
    def host_block_bytes(self) -> int:
        """Bytes of a block in main memory: a draft model's are not swapped out."""
        return self.block_bytes - self.beside * self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens of one sequence."""
        return -(-num_tokens // self.block_size)

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        """Sizes of the cache on a device.

        A block is contiguous within a layer, and within it each KV head is one matrix.

        Returns:
            [layers, 2, num_blocks, kv_heads, block_size, row_elements]; of the 2, K is first.
        """
        layers, pair, *block = self._block
        return (layers, pair, num_blocks, *block)

    def host_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Sizes of the same blocks in main memory, where a block of all layers is one piece.

        Returns:
            [num_blocks, layers, 2, kv_heads, block_size, row_elements].
        """
        return (num_blocks, *self._block)

    @property
    def _block(self) -> tuple[int, ...]:
        block = (self.num_kv_heads, self.block_size, self.row_elements)
        return (self.num_layers, _KEYS_AND_VALUES, *block)
