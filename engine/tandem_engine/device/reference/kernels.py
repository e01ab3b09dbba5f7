"""The kernels in plain torch: for any torch device, and the measure for every other backend."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata, Chunk, DecodeSplits
from tandem_engine.device.packed_model import ForwardPass, PackedLinear, PackedModel
from tandem_engine.device.reference.int8_linear import Int8Linear, WholeInt8Packing
from tandem_engine.device.runtime import HeadNorms
from tandem_engine.device.sampling import RowSampler
from tandem_engine.device.unfused import UnfusedKernels

GATHER_BYTES = 1 << 20
"""Size of the keys (or values) that decoding gathers at a time.

It bounds the working memory, and what fits a core's cache need not come from memory twice
(measured: 2 to 3 times faster than gathering all at once).
"""


@dataclass(frozen=True, slots=True)
class PlainLinear(PackedLinear):
    """A weight in its own layout."""

    weight: Tensor
    """[out, in]."""
    bias: Tensor | None
    """[out]."""


class PlainPacking:
    """See `packing.LinearPacking`: rows are copied into the weight."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def put(self, first: int, rows: Tensor) -> None:
        """Copy the rows into the weight."""
        self._weight[first : first + len(rows)] = rows

    def finish(self, bias: Tensor | None) -> PlainLinear:
        """Return the weight as it is."""
        return PlainLinear(self._weight, bias)


class ReferenceKernels(UnfusedKernels):
    """See `runtime.Kernels` for what each does."""

    def computed_in(self, dtype: torch.dtype) -> torch.dtype:
        """The same: torch's operators want one type."""
        return dtype

    def packing(
        self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device | str
    ) -> PlainPacking:
        """A weight in its own layout."""
        return PlainPacking(torch.empty(outputs, inputs, dtype=dtype, device=device))

    def packing_int8(
        self,
        outputs: int,
        inputs: int,
        device: torch.device | str,
        *,
        is_static: bool,  # noqa: ARG002
    ) -> WholeInt8Packing:
        """As `device.reference.int8_linear` decides, static or not."""
        return WholeInt8Packing(outputs, inputs, device)

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        if isinstance(packed, Int8Linear):
            return packed(x)
        plain = _plain(packed)
        return F.linear(x, plain.weight, plain.bias)

    def embedding(self, token_ids: Tensor, table: Tensor | PackedLinear) -> Tensor:
        """[tokens] → [tokens, hidden]."""
        weight = table if isinstance(table, Tensor) else _plain(table).weight
        return F.embedding(token_ids, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm of the last dimension; torch computes it in float32."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Norm of the sum, and the sum."""
        residual = x + residual
        return self.rms_norm(residual, weight, eps), residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * width] → [tokens, width]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def prepare_attention(
        self,
        qkv: Tensor,
        rope: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        *,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Norm, turn, scatter into the slots."""
        kv_heads, head_dim = k_cache.shape[1], kv_int8.head_dim_of(k_cache)
        by_head = qkv.view(len(qkv), -1, head_dim)
        heads = by_head.shape[1] - 2 * kv_heads
        q, k, v = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)  # each [tokens, …]
        if norms is not None:
            q = self.rms_norm(q, norms.q, norms.eps)
            k = self.rms_norm(k, norms.k, norms.eps)
        cos, sin = rope.index_select(0, metadata.positions).unsqueeze(1).chunk(2, dim=-1)
        _write_kv(_rotate(k, cos, sin), v, k_cache, v_cache, metadata)
        return _rotate(q, cos, sin)

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        """All decode rows at once, then the prompt chunks one by one."""
        out = torch.empty_like(q)  # [tokens, heads, head_dim]
        if metadata.decodes is not None:
            rows = slice(metadata.num_decode_rows)
            out[rows] = _attend_decodes(q[rows], k_cache, v_cache, metadata.decodes, scale)
        for chunk in metadata.chunks:
            _attend_chunk(q, k_cache, v_cache, chunk, scale, out=out)
        return out.flatten(1)

    def row_sampler(self) -> RowSampler | None:
        """None: torch samples."""
        return None

    def forward_pass(self, packed_model: PackedModel) -> ForwardPass | None:  # noqa: ARG002
        """None: kernels are called one by one, so that each can be inspected."""
        return None


def _plain(packed: PackedLinear) -> PlainLinear:
    if not isinstance(packed, PlainLinear):
        raise TypeError(f"{type(packed).__name__} was packed by other kernels; this is a bug")
    return packed


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[tokens, heads, head_dim] by [tokens, 1, head_dim / 2]: (a, b) → (ac - bs, bc + as)."""
    cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((-second, first), dim=-1), sin)


def _write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata
) -> None:
    """Store K and V of every token, [tokens, kv_heads, head_dim].

    A block whose first token this step writes is wiped before. The attention below multiplies what
    stands behind a row's last token by 0, and 0 times NaN, left there by a request that went
    wrong, would spoil the next one.
    """
    for cache in (k_cache, v_cache):
        cache.index_fill_(0, metadata.fresh_blocks, 0.0)
    blocks, offsets = metadata.slot_blocks, metadata.slot_offsets
    for rows, cache in ((k, k_cache), (v, v_cache)):
        if kv_int8.is_int8(cache):
            kv_int8.write(rows, cache, blocks, offsets)
        else:
            cache[blocks, :, offsets] = rows


def _read(cache: Tensor, blocks: Tensor) -> Tensor:
    """[blocks, kv_heads, block_size, head_dim], in float32 of a cache in 8 bits."""
    if kv_int8.is_int8(cache):
        return kv_int8.read_blocks(cache, blocks)
    return cache.index_select(0, blocks)


def _attend_decodes(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, splits: DecodeSplits, scale: float
) -> Tensor:
    """Attention of one query per row, [rows, heads, head_dim] → the same.

    Rows of any length go together without padding: every KV block of every row is one split, and
    attends by itself. The splits s of a row r are then combined, each by its share of r's softmax:

        log_sum_s = log(sum of exp(score) of s's tokens)
        share_s   = exp(log_sum_s) / (sum of exp(log_sum) of r's splits)
        out_r     = sum of share_s * out_s of r's splits

    This is flash decoding (Dao et al., 2023) with blocks of the cache as splits.
    """
    rows, heads, head_dim = q.shape
    num_splits = len(splits.rows)
    split_bytes = 4 * k_cache.shape[1:].numel()
    step = max(1, GATHER_BYTES // split_bytes)
    queries = (q.float() * scale).index_select(0, splits.rows)  # [splits, heads, head_dim]
    out = torch.empty_like(queries)
    log_sums = queries.new_empty(num_splits, heads)
    for low in range(0, num_splits, step):
        slab = slice(low, min(low + step, num_splits))
        log_sums[slab] = _attend_splits(queries, k_cache, v_cache, splits, slab, out=out)

    peaks = _combine(log_sums, splits, rows, "amax")  # [rows, heads]
    shares = (log_sums - peaks.index_select(0, splits.rows)).exp_()
    shares /= _combine(shares, splits, rows, "sum").index_select(0, splits.rows)
    out *= shares.unsqueeze(-1)
    combined = out.new_zeros(rows, heads, head_dim).index_add_(0, splits.rows, out)
    return combined.to(q.dtype)


def _attend_splits(
    queries: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    splits: DecodeSplits,
    slab: slice,
    *,
    out: Tensor,
) -> Tensor:
    """Attention within each split of `slab`, into `out`; returns log_sum, [splits, heads]."""
    kv_heads, block_size = k_cache.shape[1:3]
    heads, head_dim = queries.shape[1:]
    group = heads // kv_heads  # query heads that share a KV head
    # Blocks are [kv_heads, block_size, head_dim] so that one split and KV head is one matrix: with
    # tokens before heads, bmm would copy what was gathered (measured: 3 to 4 times slower).
    keys = _read(k_cache, splits.blocks[slab]).float().view(-1, block_size, head_dim)
    scores = torch.bmm(queries[slab].view(-1, group, head_dim), keys.mT)
    scores = scores.view(-1, heads, block_size)  # [splits, heads, block_size]
    scores += splits.tail_bias[slab]
    weights = scores.softmax(-1)
    values = _read(v_cache, splits.blocks[slab]).float().view(-1, block_size, head_dim)
    torch.bmm(weights.view(-1, group, block_size), values, out=out[slab].view(-1, group, head_dim))
    # The largest weight is exp(peak - log_sum): that spares a second pass of exp.
    return scores.amax(-1) - weights.amax(-1).log_()


def _combine(x: Tensor, splits: DecodeSplits, rows: int, how: str) -> Tensor:
    """Reduce [splits, heads] over the splits of each row → [rows, heads]."""
    combined = x.new_empty(rows, x.shape[1])
    index = splits.rows.unsqueeze(-1).expand_as(x)
    return combined.scatter_reduce_(0, index, x, how, include_self=False)


def _attend_chunk(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, chunk: Chunk, scale: float, *, out: Tensor
) -> None:
    """Attention of one row's chunk over the row's context, into its rows of `out`."""
    keys = _context(k_cache, chunk.blocks).to(q.dtype)
    values = _context(v_cache, chunk.blocks).to(q.dtype)
    for tile in chunk.tiles:
        attended = F.scaled_dot_product_attention(
            q[tile.tokens].transpose(0, 1).unsqueeze(0),  # [1, heads, queries, head_dim]
            keys[:, :, : tile.num_keys],
            values[:, :, : tile.num_keys],
            attn_mask=tile.mask,
            is_causal=tile.is_causal,
            scale=scale,
            enable_gqa=True,
        )
        out[tile.tokens] = attended.squeeze(0).transpose(0, 1)


def _context(cache: Tensor, blocks: Tensor) -> Tensor:
    """The contents of `blocks`, as [1, kv_heads, tokens, head_dim]."""
    # Gathering whole blocks and turning them afterwards is far faster than gathering from a
    # transposed view, although it copies twice.
    gathered = _read(cache, blocks).transpose(0, 1)  # [kv_heads, blocks, block_size, head_dim]
    return gathered.flatten(1, 2).unsqueeze(0)
