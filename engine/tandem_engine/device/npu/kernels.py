"""The kernels of an Ascend NPU, in the operators of torch_npu: one a stage where there is one.

Where a card wants more than an operator's meta kernel checks, docs/guides/npu.md has the rule and
its source; `limits` refuses what breaks one before anything starts.
"""

from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.graphs import Graphs
from tandem_engine.device.npu.limits import check_int8, check_mc2
from tandem_engine.device.npu.linear import (
    FloatLinear,
    FloatPacking,
    Int8Linear,
    Int8Packing,
    multiply_and_add_up,
)
from tandem_engine.device.npu.operators import npu
from tandem_engine.device.npu.step import DecodeStepInputs, StepInputs
from tandem_engine.device.packed_model import ForwardPass, PackedLinear, PackedModel
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import HeadNorms, LinearAllReduce
from tandem_engine.device.sampling import RowSampler
from tandem_engine.device.unfused import UnfusedKernels

_MASK_SIZE: Final = 2048
"""Rows and columns of the mask that stands for every causal one."""
_CAUSAL: Final = 3
"""sparse_mode: the last query sees the last key, and each one before it a key less."""


class NpuKernels(UnfusedKernels):
    """See `runtime.Kernels` for what each does."""

    def __init__(self) -> None:
        self._reference = ReferenceKernels()
        self._masks: dict[torch.device, Tensor] = {}

    def computed_in(self, dtype: torch.dtype) -> torch.dtype:
        """The same: the operators want one type."""
        return dtype

    def packing(
        self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device | str
    ) -> FloatPacking:
        """A weight in its own layout."""
        return FloatPacking(torch.empty(outputs, inputs, dtype=dtype, device=device))

    def packing_int8(
        self,
        outputs: int,
        inputs: int,
        device: torch.device | str,
        *,
        is_static: bool,  # noqa: ARG002
    ) -> Int8Packing:
        """A weight in tiles, static or not."""
        check_int8(outputs, inputs)
        return Int8Packing(outputs, inputs, device)

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        if isinstance(packed, FloatLinear):
            return self._reference.linear(x, packed)
        if isinstance(packed, Int8Linear):
            return packed(x)
        raise TypeError(f"{type(packed).__name__} was packed by other kernels; this is a bug")

    def embedding(self, token_ids: Tensor, table: Tensor | PackedLinear) -> Tensor:
        """[tokens] → [tokens, hidden]."""
        if isinstance(table, FloatLinear | Tensor):
            return self._reference.embedding(token_ids, table)
        raise TypeError(f"{type(table).__name__} holds no embeddings; this is a bug")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm of the last dimension."""
        normed, _ = npu().npu_rms_norm(x, weight, eps)
        return normed  # type: ignore[no-any-return]

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Norm of the sum, and the sum, in one operator."""
        normed, _, total = npu().npu_add_rms_norm(x, residual, weight, eps)
        return normed, total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * width] → [tokens, width]."""
        return npu().npu_swiglu(gate_up, dim=-1)  # type: ignore[no-any-return]

    def norm_linear(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float,
        packed: PackedLinear,
    ) -> tuple[Tensor, Tensor]:
        """A layer in 8 bits has its inputs normed and quantised in one operator."""
        if residual is None or not isinstance(packed, Int8Linear):
            return super().norm_linear(x, residual, weight, eps, packed)
        values, total = packed.quantize_normed(x, residual, weight, eps)
        return packed.multiply(values, x.dtype), total

    def silu_mul_linear(self, gate_up: Tensor, packed: PackedLinear) -> Tensor:
        """A layer in 8 bits has its inputs gated and quantised in one operator."""
        if not isinstance(packed, Int8Linear):
            return super().silu_mul_linear(gate_up, packed)
        return packed.multiply(packed.quantize_gated(gate_up), gate_up.dtype)

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
        kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
        by_head = qkv.view(len(qkv), -1, head_dim)
        heads = by_head.shape[1] - 2 * kv_heads
        q, k, v = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)  # each [tokens, …]
        if norms is not None:
            q = self.rms_norm(q.contiguous(), norms.q, norms.eps)
            k = self.rms_norm(k.contiguous(), norms.k, norms.eps)
        step = StepInputs.of(metadata, kv_heads=kv_heads)
        cos, sin = step.angles(rope)
        q, k = _turn(q, cos, sin), _turn(k, cos, sin)
        _write_kv(k, v, k_cache, v_cache, step)
        return q

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        """All rows in one operator, whether they decode or bring a chunk."""
        kv_heads, block_size = k_cache.shape[1:3]
        step = StepInputs.of(metadata, kv_heads=kv_heads)
        out, _ = npu().npu_fused_infer_attention_score(
            q.contiguous(),
            k_cache,
            v_cache,
            atten_mask=self._mask(q.device),
            actual_seq_lengths=step.query_ends,
            actual_seq_lengths_kv=step.context_lens,
            block_table=step.block_table,
            num_heads=q.shape[1],
            num_key_value_heads=kv_heads,
            scale=scale,
            input_layout="TND",
            sparse_mode=_CAUSAL,
            block_size=block_size,
        )
        return out.flatten(1)  # type: ignore[no-any-return]

    def row_sampler(self) -> RowSampler | None:
        """None: torch samples, on the card."""
        return None

    def forward_pass(self, packed_model: PackedModel) -> ForwardPass | None:  # noqa: ARG002
        """None: kernels are called one by one."""
        return None

    def graphs(self) -> Graphs:
        """Graphs of torch_npu, all in one pool of memory: no two are replayed at once."""
        card: Any = torch.npu  # type: ignore[attr-defined]
        pool = card.graph_pool_handle()
        return Graphs(lambda: CardGraph(card, pool), DecodeStepInputs)

    def linear_all_reduce(self, packed_model: PackedModel) -> LinearAllReduce:
        """Multiply floats: in 8 bits it would want scales in bfloat16."""
        summed = [each for layer in packed_model.layers for each in (layer.output, layer.down)]
        check_mc2(is_in_float=all(isinstance(each, FloatLinear) for each in summed))
        return multiply_and_add_up

    def _mask(self, device: torch.device) -> Tensor:
        """[2048, 2048] bool, true where a query must not look."""
        if device not in self._masks:
            ones = torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device=device)
            self._masks[device] = ones.triu_(1)
        return self._masks[device]


class CardGraph:
    """Implements `graphs.Graph` by `torch.npu.NPUGraph`.

    Args:
        card: torch_npu's module.
        pool: Where the graph takes memory.
    """

    def __init__(self, card: Any, pool: Any) -> None:
        self._card, self._pool = card, pool
        self._graph = card.NPUGraph()

    def record(self) -> AbstractContextManager[None]:
        """Capture on a stream of its own, as torch_npu does."""
        context: AbstractContextManager[None] = self._card.graph(self._graph, pool=self._pool)
        return context

    def replay(self) -> None:
        """Queue the graph."""
        self._graph.replay()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[tokens, heads, head_dim] by [1, tokens, 1, head_dim], in halves."""
    turned: Tensor = npu().npu_rotary_mul(x.unsqueeze(0), cos, sin)
    return turned.squeeze(0)


def _write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, step: StepInputs) -> None:
    """Store K and V of every token, [tokens, kv_heads, head_dim].

    The operator knows caches whose heads lie beside each other. In ours a head of a block is a
    piece of its own, so each counts as a block with one head, and each token brings as many rows.

    A block that begins is wiped, since it is not known whether the card multiplies what stands
    behind a row's last token by 0: 0 times NaN would spoil the next request.
    """
    if step.fresh_blocks is not None:
        for cache in (k_cache, v_cache):
            cache.index_fill_(0, step.fresh_blocks, 0.0)
    _, _, block_size, head_dim = k_cache.shape
    npu().npu_scatter_pa_kv_cache(
        k.contiguous().view(-1, 1, head_dim),
        v.contiguous().view(-1, 1, head_dim),
        k_cache.view(-1, block_size, 1, head_dim),
        v_cache.view(-1, block_size, 1, head_dim),
        step.slots,
        cache_mode="Norm",
    )
