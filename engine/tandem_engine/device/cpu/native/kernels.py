"""The kernels of `runtime.Kernels` in C++, for float32, bfloat16 and float16 on the CPU.

Where weights are in float16, so is the KV cache, and activations are in float32: a weight is read
as it is, at 2 bytes, and nothing overflows on the way. Shapes that do not come in whole units go to
the reference.
"""

import logging
from ctypes import byref

import torch
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.cpu.huge_pages import HugePages
from tandem_engine.device.cpu.native.arguments import (
    cache_args,
    of_cache,
    rows_args,
    token_slots_args,
)
from tandem_engine.device.cpu.native.forward import NativeForward, unsupported_reason
from tandem_engine.device.cpu.native.library import KINDS, WEIGHT_KINDS, Library, computed_in
from tandem_engine.device.cpu.native.linear import (
    Int8PanelLinear,
    Int8PanelPacking,
    PanelLinear,
    PanelPacking,
    input_args,
)
from tandem_engine.device.cpu.native.sampling import NativeRowSampler
from tandem_engine.device.cpu.native.widths import is_packed
from tandem_engine.device.packed_model import ForwardPass, PackedLinear, PackedModel
from tandem_engine.device.packing import Int8Packing, LinearPacking
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import HeadNorms
from tandem_engine.device.sampling import RowSampler
from tandem_engine.device.unfused import UnfusedKernels
from tandem_engine.quantization.int8 import StaticInput

_LOG = logging.getLogger(__name__)


class NativeKernels(UnfusedKernels):
    """See `runtime.Kernels` for what each does.

    Args:
        library: The compiled kernels.
        pages: Where weights go; None: pages of their own.
    """

    def __init__(self, library: Library, pages: HugePages | None = None) -> None:
        self.library = library
        self._reference = ReferenceKernels()
        self._pages = pages or HugePages()
        self.is_native = True
        """True while the last model is computed in one call, without torch."""
        self._last_reason: str | None = None
        """Reason of the last warning, why it was not."""

    def computed_in(self, dtype: torch.dtype) -> torch.dtype:
        """float32 for float16, else the same."""
        return computed_in(dtype)

    def packing(
        self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device | str
    ) -> LinearPacking:
        """Cut weights into panels, in huge pages."""
        if dtype not in WEIGHT_KINDS or not is_packed(inputs, is_in_8_bits=False):
            return self._reference.packing(outputs, inputs, computed_in(dtype), device)
        return PanelPacking(self.library, self._pages, outputs, inputs, dtype)

    def packing_int8(
        self, outputs: int, inputs: int, device: torch.device | str, *, is_static: bool
    ) -> Int8Packing:
        """Cut weights into panels, in huge pages."""
        if not is_packed(inputs, is_in_8_bits=True):
            return self._reference.packing_int8(outputs, inputs, device, is_static=is_static)
        return Int8PanelPacking(self.library, self._pages, outputs, inputs)

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        if isinstance(packed, Int8PanelLinear):
            return self._linear_int8(x, packed)
        if not isinstance(packed, PanelLinear):
            return self._reference.linear(x, packed)
        dtype, x = x.dtype, x.to(packed.computed_in).contiguous()
        out = x.new_empty(len(x), packed.outputs)
        self.library("linear", packed.dtype)(
            x.data_ptr(), len(x), byref(packed.args), None, out.data_ptr()
        )
        return out.to(dtype)

    def _linear_int8(self, x: Tensor, packed: Int8PanelLinear) -> Tensor:
        if x.dtype not in KINDS:
            return self._linear_int8(x.float(), packed).to(x.dtype)
        return self.linear_int8(*self.quantize(x, packed.static), packed, x.dtype)

    def embedding(self, token_ids: Tensor, table: Tensor | PackedLinear) -> Tensor:
        """[tokens] → [tokens, hidden]."""
        if not isinstance(table, PanelLinear):
            rows = self._reference.embedding(token_ids, table)
            return rows.to(computed_in(rows.dtype))
        out = torch.empty(len(token_ids), table.inputs, dtype=table.computed_in)
        unpack = self.library("unpack_rows", table.dtype)
        unpack(byref(table.args), token_ids.data_ptr(), len(token_ids), out.data_ptr())
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm of the last dimension."""
        if x.dtype not in KINDS:
            return self._reference.rms_norm(x, weight, eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        width = len(weight)
        norm = self.library("rms_norm", x.dtype)
        norm(
            x.data_ptr(),
            width,
            weight.data_ptr(),
            x.numel() // width,
            width,
            eps,
            out.data_ptr(),
        )
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Norm of the sum, and the sum."""
        if x.dtype not in KINDS:
            return self._reference.add_rms_norm(x, residual, weight, eps)
        x, residual = x.contiguous(), residual.contiguous()
        added, out = torch.empty_like(x), torch.empty_like(x)
        width = len(weight)
        self.library("add_rms_norm", x.dtype)(
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            x.numel() // width,
            width,
            eps,
            added.data_ptr(),
            out.data_ptr(),
        )
        return out, added

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * width] → [tokens, width]."""
        if gate_up.dtype not in KINDS:
            return self._reference.silu_mul(gate_up)
        gate_up = gate_up.contiguous()
        width = gate_up.shape[1] // 2
        out = gate_up.new_empty(len(gate_up), width)
        silu_mul = self.library("silu_mul", gate_up.dtype)
        silu_mul(gate_up.data_ptr(), len(gate_up), width, out.data_ptr())
        return out

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
        """Norm and rotate Q in place, K into the cache; copy V there."""
        if qkv.dtype not in KINDS or not _fits(qkv, k_cache):
            return self._reference.prepare_attention(
                qkv, rope, k_cache, v_cache, metadata, norms=norms
            )
        cache = cache_args(k_cache, v_cache)
        heads = qkv.shape[1] // cache.head_dim - 2 * cache.kv_heads
        self.library(*of_cache("prepare_attention", k_cache, qkv.dtype))(
            qkv.data_ptr(),
            qkv.stride(0),
            heads,
            norms.q.data_ptr() if norms else None,
            norms.k.data_ptr() if norms else None,
            norms.eps if norms else 0.0,
            byref(token_slots_args(metadata, rope)),
            byref(cache),
        )
        return qkv[:, : heads * cache.head_dim].view(len(qkv), heads, cache.head_dim)

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        """All rows in one call."""
        if q.dtype not in KINDS or not _fits(q, k_cache):
            return self._reference.paged_attention(q, k_cache, v_cache, metadata, scale)
        tokens, heads, head_dim = q.shape
        if q.stride()[1:] != (head_dim, 1):
            q = q.contiguous()
        out = q.new_empty(tokens, heads * head_dim)
        self.library(*of_cache("attend", k_cache, q.dtype))(
            q.data_ptr(),
            q.stride(0),
            heads,
            byref(cache_args(k_cache, v_cache)),
            byref(rows_args(metadata)),
            scale,
            out.data_ptr(),
        )
        return out

    def row_sampler(self) -> RowSampler | None:
        """All rows in one call."""
        return NativeRowSampler(self.library)

    def forward_pass(self, packed_model: PackedModel) -> ForwardPass | None:
        """One call a step; where the kernels cannot compute all of it, a warning says why."""
        reason = unsupported_reason(packed_model)
        self.is_native = reason is None
        if reason is None:
            return NativeForward(self.library, packed_model)
        if reason != self._last_reason:  # a model has several decoders: one measures steps
            self._last_reason = reason
            _LOG.warning(
                "The native forward pass is not used, so steps take several times as long: %s.",
                reason,
            )
        return None

    def linear_int8(
        self, x: Tensor, x_scales: Tensor, packed: Int8PanelLinear, dtype: torch.dtype
    ) -> Tensor:
        """Rows as `quantize` gives them → [tokens, out] of `dtype`."""
        out = torch.empty(len(x), packed.outputs, dtype=dtype)
        linear = self.library("linear_int8", dtype)
        linear(
            x.data_ptr(),
            x_scales.data_ptr(),
            len(x),
            byref(packed.args),
            None,
            out.data_ptr(),
        )
        return out

    def quantize(self, x: Tensor, static: StaticInput | None = None) -> tuple[Tensor, Tensor]:
        """Per-token u8 and scale: x ≈ (q - 128) * scale; or by what is given, and then 1."""
        x = x.contiguous()
        out, scales = x.new_empty(x.shape, dtype=torch.uint8), _scales(x)
        self.library("quantize", x.dtype)(
            x.data_ptr(),
            len(x),
            x.shape[1],
            byref(input_args(static)),
            out.data_ptr(),
            scales.data_ptr(),
        )
        return out, scales

    def quantize_norm(
        self, x: Tensor, weight: Tensor, eps: float, static: StaticInput | None = None
    ) -> tuple[Tensor, Tensor]:
        """quantize(rms_norm(x)) without rounding in between."""
        x = x.contiguous()
        out, scales = x.new_empty(x.shape, dtype=torch.uint8), _scales(x)
        self.library("quantize_norm", x.dtype)(
            x.data_ptr(),
            weight.data_ptr(),
            len(x),
            x.shape[1],
            eps,
            byref(input_args(static)),
            out.data_ptr(),
            scales.data_ptr(),
        )
        return out, scales

    def quantize_gated(
        self, gate_up: Tensor, static: StaticInput | None = None
    ) -> tuple[Tensor, Tensor]:
        """quantize(silu_mul(gate_up)) without rounding in between."""
        gate_up = gate_up.contiguous()
        width = gate_up.shape[1] // 2
        out, scales = gate_up.new_empty(len(gate_up), width, dtype=torch.uint8), _scales(gate_up)
        self.library("quantize_gated", gate_up.dtype)(
            gate_up.data_ptr(),
            len(gate_up),
            width,
            byref(input_args(static)),
            out.data_ptr(),
            scales.data_ptr(),
        )
        return out, scales


def _fits(x: Tensor, cache: Tensor) -> bool:
    """True if there are kernels for a cache of this type beside `x`."""
    return kv_int8.is_int8(cache) or computed_in(cache.dtype) == x.dtype


def _scales(x: Tensor) -> Tensor:
    return torch.empty(len(x), dtype=torch.float32)
