"""From tensors and arrays to the structures that the library takes."""

from ctypes import addressof, c_char
from typing import Any, cast

import torch
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata, Int32s, Ints
from tandem_engine.device.cpu.native.library import CacheArgs, RowsArgs, TokenSlotsArgs


def address(array: Ints | Int32s) -> int:
    """Address of an array, which must not be empty, and must outlive the call."""
    # The quickest way there is: a microsecond less than numpy's own, seven times a step.
    return addressof(c_char.from_buffer(cast(Any, array)))


def cache_args(k_cache: Tensor, v_cache: Tensor) -> CacheArgs:
    """One layer's caches, in float or as in `kv_int8`."""
    return CacheArgs(
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k_cache.shape[1],
        k_cache.shape[2],
        kv_int8.head_dim_of(k_cache),
    )


def of_cache(name: str, cache: Tensor, dtype: torch.dtype) -> tuple[str, torch.dtype]:
    """The kernel `name` for a cache of this kind, beside activations of `dtype`; and its type."""
    return (f"{name}_kv8", dtype) if kv_int8.is_int8(cache) else (name, cache.dtype)


def token_slots_args(metadata: AttentionMetadata, rope: Tensor | None = None) -> TokenSlotsArgs:
    """Positions and slots of the step's tokens."""
    return TokenSlotsArgs(
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
