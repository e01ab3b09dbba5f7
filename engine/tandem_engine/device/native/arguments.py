"""From tensors and arrays to the structures that the library takes."""

from ctypes import addressof, c_char
from typing import Any, cast

from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata, Int32s, Ints
from tandem_engine.device.native.library import CacheArgs, PlacesArgs, RowsArgs


def address(array: Ints | Int32s) -> int:
    """Where an array lies, which must not be empty, and must outlive the call."""
    # The quickest way there is: a microsecond less than numpy's own, seven times a step.
    return addressof(c_char.from_buffer(cast(Any, array)))


def cache_args(k_cache: Tensor, v_cache: Tensor) -> CacheArgs:
    """One layer's caches, [num_blocks, kv_heads, block_size, head_dim]."""
    return CacheArgs(k_cache.data_ptr(), v_cache.data_ptr(), *k_cache.shape[1:])


def places_args(metadata: AttentionMetadata, rope: Tensor | None = None) -> PlacesArgs:
    """Positions and slots of the step's tokens."""
    return PlacesArgs(
        None if rope is None else rope.data_ptr(),
        address(metadata.token_positions),
        address(metadata.token_blocks),
        address(metadata.token_offsets),
        metadata.num_tokens,
    )


def rows_args(metadata: AttentionMetadata) -> RowsArgs:
    """Rows, contexts and blocks of the step."""
    return RowsArgs(
        address(metadata.row_starts),
        address(metadata.context_lens),
        address(metadata.first_block),
        address(metadata.blocks),
        metadata.num_rows,
    )
