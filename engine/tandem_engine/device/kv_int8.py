"""The KV cache in 8 bits: what MindIE calls C8, with scales found as K and V are written.

    k[t, h] ≈ scale[t, h] * q[t, h]        -127 ≤ q ≤ 127, a scale for each token and KV head

K is quantised after it is turned, V as it is; the scale is the largest magnitude over 127. A row
with a number that is not finite has the scale NaN, so that all results that read it are NaN, too.

What one block holds of one KV head is a *page*: the values of its tokens, and behind them their
scales, so that a block that is copied, swapped or shared takes its scales along.

    page:   int8 [block_size, head_dim] | float32 [block_size]
    cache:  int8 [num_blocks, kv_heads, block_size, head_dim + 4]; the last two are a page
"""

import torch
from torch import Tensor

from tandem_engine.kvcache.layout import SCALE_BYTES
from tandem_engine.quantization.int8 import scales_of_rows


def is_int8(cache: Tensor) -> bool:
    """True if a cache, of K or of V, is in 8 bits."""
    return cache.dtype == torch.int8


def head_dim_of(cache: Tensor) -> int:
    """Size of a head in a cache of either kind."""
    return cache.shape[3] - (SCALE_BYTES if is_int8(cache) else 0)


def values_of(cache: Tensor) -> Tensor:
    """[num_blocks, kv_heads, block_size, head_dim] int8; the same memory."""
    block_size, head_dim = cache.shape[2], head_dim_of(cache)
    values = cache.flatten(2)[..., : block_size * head_dim]
    return values.view(*cache.shape[:3], head_dim)


def scales_of(cache: Tensor) -> Tensor:
    """[num_blocks, kv_heads, block_size] float32; the same memory."""
    block_size, head_dim = cache.shape[2], head_dim_of(cache)
    return cache.flatten(2)[..., block_size * head_dim :].view(torch.float32)


def write(rows: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """Quantise K or V of some tokens into their slots.

    Args:
        rows: [tokens, kv_heads, head_dim], of any float type.
        cache: See the module.
        blocks: [tokens] int64.
        offsets: [tokens] int64, offsets in the blocks.
    """
    rows = rows.float()
    scales = scales_of_rows(rows)
    # By the reciprocal and not by a division, as in quantize_row.h.
    values = (rows * scales.reciprocal().unsqueeze(-1)).round_().to(torch.int8)
    values_of(cache)[blocks, :, offsets] = values
    scales_of(cache)[blocks, :, offsets] = scales


def read_blocks(cache: Tensor, blocks: Tensor) -> Tensor:
    """Dequantised values of some blocks, [blocks, kv_heads, block_size, head_dim] float32."""
    gathered = cache.index_select(0, blocks)
    return values_of(gathered).float().mul_(scales_of(gathered).unsqueeze(-1))
