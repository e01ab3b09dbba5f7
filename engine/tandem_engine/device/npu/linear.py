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

_FRACTAL_NZ: Final = 29
"""CANN's number of the layout in tiles of 16 by 32 bytes, which its matrix units read."""


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
        values, x_scales = npu().npu_dynamic_quant(x) if self.static is None else self.static(x)
        y: Tensor = npu().npu_quant_matmul(
            values,
            self.weight,
            self.scales,
            pertoken_scale=x_scales,
            bias=self.bias,
            output_dtype=x.dtype,
        )
        return y


@dataclass(frozen=True, slots=True)
class StaticScale:
    """The quantisation of all inputs of a layer."""

    reciprocal: Tensor
    """[1] float32: 1 / scale."""
    zero: Tensor
    """[1] float32: the operator wants the type of the other one."""

    @classmethod
    def of(cls, static: StaticInput, device: torch.device) -> "StaticScale":
        """Lay it out for the operator."""
        return cls(
            reciprocal=torch.tensor([1.0 / static.scale], device=device),
            zero=torch.tensor([float(static.zero_point - SHIFT)], device=device),
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, in] → the same in int8, and a factor of each token: 1, or NaN.

        8 bits cannot hold values that are not finite; the row of one must not be finite, either.
        """
        values = npu().npu_quantize(
            x.float(), self.reciprocal, self.zero, torch.qint8, axis=-1, div_mode=False
        )
        sound = torch.where(x.isfinite().all(dim=1), 1.0, torch.nan)
        return values, sound.float()


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
            static=None if static is None else StaticScale.of(static, values.device),
        )


def _in_tiles(weight: Tensor) -> Tensor:
    """Return an [in, out] weight as the card reads it fastest; elsewhere there are no tiles."""
    if weight.device.type != "npu":
        return weight
    tiled: Tensor = npu().npu_format_cast(weight, _FRACTAL_NZ)
    return tiled
