"""Linear layers in 8 bits by torch's own operators: see `quantization.int8` for the formulas.

Two ways to multiply, equal to the last bit as long as a sum of the shifted bytes is below 2^24, and
else to float32's rounding; which one is decided here alone, by what the CPU has:

* oneDNN's product of bytes, where the CPU has VNNI. Without it oneDNN adds pairs of products in 16
  bits, which overflow.
* A product of float32, for every other CPU and every other device.
"""

from typing import Final, Protocol

import torch
from torch import Tensor

from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.quantization.int8 import (
    SHIFT,
    Int8Weight,
    StaticInput,
    quantize_static,
    quantize_tokens,
)

_CHUNK_OUTPUTS: Final = 1024
"""Outputs whose weights are float32 at a time, where bytes cannot be multiplied."""


class Product(Protocol):
    """The sums of products of one weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] uint8 → [tokens, out] float32: scales[o] * Σ (x[i] - zero) * q[o, i]."""


class Int8Linear(PackedLinear):
    """A linear layer in 8 bits, whose result is of its input's type.

    Args:
        weight: The layer.
        product: How its sums are computed.
    """

    def __init__(self, weight: Int8Weight, product: Product) -> None:
        self.static = weight.static
        """Quantisation of its inputs; None: token by token."""
        self._bias = weight.bias
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        if self.static is None:
            return self.multiply(*quantize_tokens(x), dtype=x.dtype)
        # 8 bits cannot hold values that are not finite; the row of one must not be finite, either.
        sound = torch.where(x.isfinite().all(dim=1), 1.0, torch.nan)
        return self.multiply(quantize_static(x, self.static), sound, dtype=x.dtype)

    def multiply(self, x: Tensor, x_scales: Tensor | None, *, dtype: torch.dtype) -> Tensor:
        """Multiply what was quantised before.

        Args:
            x: [tokens, in] uint8.
            x_scales: [tokens] float32; None: 1, since a static input's is in the weight's scales.
            dtype: Type of the result.
        """
        sums = self._product(x)
        if x_scales is not None:
            sums.mul_(x_scales.unsqueeze(1))
        if self._bias is not None:
            sums.add_(self._bias)
        return sums.to(dtype)


class OneDnnProduct:
    """oneDNN's product of bytes; it keeps a copy of the weight in an order of its own."""

    def __init__(self, weight: Int8Weight) -> None:
        self._zero_point = _zero_point(weight)
        self._packed = torch.ops.onednn.qlinear_prepack(weight.values, None)
        self._scales = weight.scales
        self._no_offsets = torch.zeros(len(weight.scales), dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(x, 1.0, self._zero_point),
            *(self._packed, self._scales, self._no_offsets),
            *(None, 1.0, 0, torch.float32, "none", [], "none"),
        )
        return sums


class FloatProduct:
    """The same in float32, for CPUs without the instructions, and for other devices."""

    def __init__(self, weight: Int8Weight) -> None:
        self._zero_point = _zero_point(weight)
        self._values, self._scales = weight.values, weight.scales

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        signed = x.float().sub_(self._zero_point)
        # A float32 copy of the whole weight would take four times its memory.
        parts = [signed @ rows.float().T for rows in torch.split(self._values, _CHUNK_OUTPUTS)]
        return torch.cat(parts, dim=1).mul_(self._scales)


class WholeInt8Packing:
    """See `packing.Int8Packing`: oneDNN wants the weight as a whole.

    It is freed when the layer is finished: oneDNN has a copy of its own.
    """

    def __init__(self, outputs: int, inputs: int, device: torch.device | str) -> None:
        self._values = torch.empty(outputs, inputs, dtype=torch.int8, device=device)

    def put(self, first: int, rows: Tensor) -> None:
        """Copy the rows into the weight."""
        self._values[first : first + len(rows)] = rows

    def finish(self, scales: Tensor, bias: Tensor | None, static: StaticInput | None) -> Int8Linear:
        """Pack the weight in the layout that this machine multiplies fastest."""
        weight = Int8Weight(self._values, scales, bias, static)
        self._values = torch.empty(0, dtype=torch.int8)
        is_fast = weight.values.device.type == "cpu" and has_vnni()
        return Int8Linear(weight, OneDnnProduct(weight) if is_fast else FloatProduct(weight))


def has_vnni() -> bool:
    """True if this CPU multiplies bytes and adds them up in 32 bits, as torch reports it."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_vnni") or capabilities.get("avx_vnni"))


def _zero_point(weight: Int8Weight) -> int:
    return SHIFT if weight.static is None else weight.static.zero_point
