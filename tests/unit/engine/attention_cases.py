"""Attention by plain formulas, and batches of all kinds to compare kernels with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.runtime import Kernels
from tandem_engine.kvcache.layout import CacheLayout

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of the two halves as complex numbers, [tokens, heads, head_dim]."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones(()), angles[:, None, :]
    )
    return torch.cat((pairs.real, pairs.imag), -1)


@dataclass(frozen=True)
class Batch:
    """Rows as (new tokens, tokens before them), and the shape of attention."""

    rows: tuple[tuple[int, int], ...]
    block_size: int = 4
    head_dim: int = 8
    heads: int = 4
    kv_heads: int = 2
    dtype: torch.dtype = torch.float32
    seed: int = 0
    is_cache_int8: bool = False

    @property
    def cache_dtype(self) -> torch.dtype:
        return torch.int8 if self.is_cache_int8 else self.dtype


def attend(kernels: Kernels, batch: Batch, *, elsewhere: float = 50.0) -> tuple[Tensor, Tensor]:
    """Return the paged kernel's result, and plain attention of each row by itself."""
    head_dim, size = batch.head_dim, batch.block_size
    generator = torch.Generator().manual_seed(batch.seed)
    need = [-(-(new + before) // size) for new, before in batch.rows]
    ids = torch.randperm(sum(need) + 3, generator=generator).tolist()
    tables = [[ids.pop() for _ in range(count)] for count in need]
    # Slots of no row hold large values, so that a kernel that reads them is noticed.
    k_cache, v_cache = (cache_full_of(elsewhere, batch, sum(need) + 3) for _ in range(2))
    queries, expected = [], []
    for (new, before), table in zip(batch.rows, tables, strict=True):
        length = new + before
        q = torch.randn(new, batch.heads, head_dim, generator=generator).to(batch.dtype)
        k, v = torch.randn(2, length, batch.kv_heads, head_dim, generator=generator).to(batch.dtype)
        positions = torch.arange(length)
        blocks, offsets = torch.tensor(table)[positions // size], positions % size
        k, v = (put(rows, cache, blocks, offsets) for rows, cache in ((k, k_cache), (v, v_cache)))
        queries.append(q)
        expected.append(plain_attention(q, k, v))
    metadata = build_attention_metadata(
        query_lens=[new for new, _ in batch.rows],
        context_lens=[new + before for new, before in batch.rows],
        block_tables=tables,
        block_size=size,
    )
    scale = head_dim**-0.5
    # As a view of what a projection gives, where K and V stand behind Q.
    wide = torch.full((metadata.num_tokens, (batch.heads + 2) * head_dim), elsewhere)
    q = wide.to(batch.dtype)[:, : batch.heads * head_dim].view(-1, batch.heads, head_dim)
    q.copy_(torch.cat(queries))
    out = kernels.paged_attention(q, k_cache, v_cache, metadata, scale)
    return out, torch.cat(expected)


def cache_full_of(value: float, batch: Batch, num_blocks: int) -> Tensor:
    layout = CacheLayout(
        num_layers=1,
        num_kv_heads=batch.kv_heads,
        head_dim=batch.head_dim,
        dtype=str(batch.cache_dtype).removeprefix("torch."),
        block_size=batch.block_size,
    )
    shape = layout.shape(num_blocks)[2:]
    if not batch.is_cache_int8:
        return torch.full(shape, value, dtype=batch.dtype)
    cache = torch.full(shape, 77, dtype=torch.int8)
    kv_int8.scales_of(cache).fill_(value)
    return cache


def put(rows: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> Tensor:
    """Write K or V into their slots; returns what then stands there."""
    if not kv_int8.is_int8(cache):
        cache[blocks, :, offsets] = rows
        return rows
    kv_int8.write(rows, cache, blocks, offsets)
    values, scales = kv_int8.values_of(cache), kv_int8.scales_of(cache)
    return values[blocks, :, offsets] * scales[blocks, :, offsets].unsqueeze(-1)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax of all scores of one row, in double precision; [new, heads * head_dim]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))  # [heads, tokens, head_dim]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    before = k.shape[1] - q.shape[1]
    sees = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(before)
    mixed = scores.masked_fill(~sees, -math.inf).softmax(-1) @ v
    return mixed.transpose(0, 1).flatten(1)


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    dtypes: Sequence[torch.dtype],
    head_dims: Sequence[int] = (8,),
    is_cache_int8: bool = False,
) -> Batch:
    size = draw(st.sampled_from([1, 2, 4, 16]))
    # Mostly lengths around the edge of a block, where an index is wrong first.
    edges = st.builds(
        lambda blocks, off: max(0, blocks * size + off), st.integers(0, 4), st.integers(-1, 1)
    )
    before = edges | st.integers(0, 40)
    decodes = [(1, count) for count in draw(st.lists(before, max_size=6))]
    new = edges.map(lambda count: max(1, count)) | st.integers(1, 20)
    chunks = draw(st.lists(st.tuples(new, before), min_size=0 if decodes else 1, max_size=3))
    heads, kv_heads = draw(st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1), (1, 1)]))
    return Batch(
        rows=(*decodes, *chunks),
        block_size=size,
        heads=heads,
        kv_heads=kv_heads,
        dtype=draw(st.sampled_from(dtypes)),
        head_dim=draw(st.sampled_from(head_dims)),
        seed=draw(st.integers(0, 100)),
        is_cache_int8=is_cache_int8,
    )
