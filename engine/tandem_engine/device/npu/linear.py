"""Linear layers of an NPU: floats by torch's own operator, 8 bits by npu_quant_matmul.

The operator multiplies bytes with a sign, and knows no zero point. Quantised inputs without a sign
are those of `quantization.int8` less 128, and what a zero point adds is known before:

    y[t, o] = x_scale[t] * scales[o] * Σ x[t, i] * q[o, i]  +  bias[o] - scales[o] * zero * sum[o]
    sum[o]  = Σ q[o, i]
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem_engine.device.npu.operators import npu
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.reference.kernels import PlainLinear, PlainPacking
from tandem_engine.quantization.int8 import SHIFT, StaticInput

Quantized = tuple[Tensor, Tensor]
"""Inputs of a layer, [tokens, in] int8, and a factor of each token, [tokens] float32."""

_FRACTAL_NZ: Final = 29
"""CANN's number of the layout in tiles of 16 by 32 bytes, which its matrix units read."""
_DYNAMIC: Final = 1
"""quant_mode: each token has a scale of its own."""


class FloatLinear(PlainLinear):
    """A weight in its own layout, on the card."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Int8Linear(PackedLinear):
    """A weight in 8 bits; inputs are quantised as they come."""

    weight: Tensor
    """[in, out] int8, in tiles on a card."""
    scales: Tensor
    """[out] float32."""
    bias: Tensor | None
    """[out] float32, with what the zero point of a static input adds."""
    static: "StaticScale | None"
    """None: inputs are quantised token by token."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        return self.multiply(self.quantize(x), x.dtype)

    def quantize(self, x: Tensor) -> Quantized:
        """[tokens, in], in 8 bits."""
        return npu().npu_dynamic_quant(x) if self.static is None else self.static(x)

    def quantize_normed(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Quantized, Tensor]:
        """Return the norm of a sum in 8 bits, and the sum, [tokens, in], in one operator."""
        if self.static is not None:
            return self.static.normed(x, residual, weight, eps)
        values, _, total, x_scales, _ = npu().npu_add_rms_norm_dynamic_quant(
            x, residual, weight, epsilon=eps
        )
        return (values, x_scales), total

    def quantize_gated(self, gate_up: Tensor) -> Quantized:
        """[tokens, 2 * in] → silu(gate) * up in 8 bits, in one operator unless they have one scale.

        The operator would take that scale, too; its page does not say whether it multiplies by it.
        """
        if self.static is not None:
            return self.static(npu().npu_swiglu(gate_up, dim=-1))
        return npu().npu_dequant_swiglu_quant(  # type: ignore[no-any-return]
            gate_up, activate_left=True, quant_mode=_DYNAMIC
        )

    def multiply(self, x: Quantized, dtype: torch.dtype) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        values, x_scales = x
        y: Tensor = npu().npu_quant_matmul(
            values,
            self.weight,
            self.scales,
            pertoken_scale=x_scales,
            bias=self.bias,
            output_dtype=dtype,
        )
        return y


@dataclass(frozen=True, slots=True)
class StaticScale:
    """The quantisation of all inputs of a layer."""

    reciprocal: Tensor
    """[1] float32: 1 / scale."""
    zero: Tensor
    """[1] float32: npu_quantize wants the type of the other one."""
    reciprocals: Tensor
    """[in] float32: the operator that norms wants one for each input."""
    zeros: Tensor
    """[in] int32, for the same."""

    @classmethod
    def of(cls, static: StaticInput, weight: Tensor) -> "StaticScale":
        """Lay it out for the operators, beside a weight of [out, in]."""
        reciprocal, zero = 1.0 / static.scale, static.zero_point - SHIFT
        inputs, device = weight.shape[1], weight.device
        return cls(
            reciprocal=torch.tensor([reciprocal], device=device),
            zero=torch.tensor([float(zero)], device=device),
            reciprocals=torch.full((inputs,), reciprocal, device=device),
            zeros=torch.full((inputs,), zero, dtype=torch.int32, device=device),
        )

    def __call__(self, x: Tensor) -> Quantized:
        """[tokens, in], in 8 bits."""
        values = npu().npu_quantize(
            x.float(), self.reciprocal, self.zero, torch.qint8, axis=-1, div_mode=False
        )
        return values, _soundness(x)

    def normed(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Quantized, Tensor]:
        """See `Int8Linear.quantize_normed`."""
        values, _, total = npu().npu_add_rms_norm_quant(
            x, residual, weight, self.reciprocals, self.zeros, epsilon=eps, div_mode=False
        )
        # What is finite has a finite norm. The sum goes on as it is; but keys and values that came
        # of zeros in place of it would be read by later tokens, and nothing would tell them.
        return (values, _soundness(total)), total


def _soundness(x: Tensor) -> Tensor:
    """[tokens] float32: a factor of each token, 1 or NaN.

    8 bits cannot hold values that are not finite; the row of one must not be finite, either. A
    sum takes fewer operators of a card than to ask each value.
    """
    return x.sum(dim=1, dtype=torch.float32).mul_(0.0).add_(1.0)


def multiply_and_add_up(x: Tensor, packed: PackedLinear, group: str) -> Tensor:
    """See `runtime.LinearAllReduce`: HCCL works on one part of the product while the next is made.

    The bias is one rank's, so that it is added once.
    """
    if not isinstance(packed, FloatLinear):
        raise TypeError(f"{type(packed).__name__} is not in float; this is a bug")
    y: Tensor = npu().npu_mm_all_reduce_base(x, packed.weight.t(), group, bias=packed.bias)
    return y


class FloatPacking(PlainPacking):
    """See `packing.LinearPacking`: rows are copied into the weight, which is on the card."""

    def finish(self, bias: Tensor | None) -> FloatLinear:
        """Return the weight as it is."""
        return FloatLinear(self._weight, bias)


class Int8Packing:
    """See `packing.Int8Packing`: rows become columns when all are there."""

    def __init__(self, outputs: int, inputs: int, device: torch.device | str) -> None:
        self._values = torch.empty(outputs, inputs, dtype=torch.int8, device=device)

    def put(self, first: int, rows: Tensor) -> None:
        """Copy the rows to the device."""
        self._values[first : first + len(rows)] = rows

    def finish(self, scales: Tensor, bias: Tensor | None, static: StaticInput | None) -> Int8Linear:
        """Turn the weight, and lay it out in tiles on a card."""
        values, self._values = self._values, torch.empty(0, dtype=torch.int8)
        if static is not None:
            sums = values.sum(dim=1, dtype=torch.int32).float()
            added = -scales * (static.zero_point - SHIFT) * sums
            bias = added if bias is None else bias + added
        return Int8Linear(
            weight=_in_tiles(values.T.contiguous()),
            scales=scales,
            bias=bias,
            static=None if static is None else StaticScale.of(static, values),
        )


def _in_tiles(weight: Tensor) -> Tensor:
    """Return an [in, out] weight as the card reads it fastest; elsewhere there are no tiles."""
    if weight.device.type != "npu":
        return weight
    tiled: Tensor = npu().npu_format_cast(weight, _FRACTAL_NZ)
    return tiled
