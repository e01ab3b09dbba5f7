"""The arithmetic of W8A8: linear layers that multiply integers of 8 bits.

    weight[o, i] ≈ scales[o] * q[o, i]               -127 ≤ q ≤ 127, a scale for each output
    x[t, i]      ≈ x_scale[t] * (u[t, i] - zero)     0 ≤ u ≤ 255
    y[t, o]      = x_scale[t] * scales[o] * Σ (u[t, i] - zero) * q[o, i]  +  bias[o]

The sum is exact, in 32 bits. Activations have no sign, because the instructions that multiply bytes
take one operand without sign (VPDPBUSD); symmetric values are shifted by 128.

*Dynamic*: x_scale is found for each token when it is computed, its largest magnitude over 127.
*Static*: one x_scale and one zero point for all tokens, which the checkpoint gives.
The scheme is that of Dettmers et al., "LLM.int8()", 2022, without its float columns.

A weight's scale is its row's largest magnitude over 127. A search for the smaller one of least
squared error, which cuts the largest weights off, brought the error of tandem-tiny's layers down by
0.3 to 0.5 %, that of normal weights by 0.8 to 1.2 %; that is not worth the time.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 127
SHIFT: Final = 128
"""Zero point of symmetric activations without sign."""
_CHUNK_VALUES: Final = 1 << 18
"""Weights that are quantised at a time: so many floats stay in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class StaticInput:
    """Quantisation of all inputs of a linear layer: u = round(x / scale) + zero_point."""

    scale: float
    zero_point: int
    """0 to 255."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A linear layer in 8 bits."""

    values: Tensor
    """[out, in] int8."""
    scales: Tensor
    """[out] float32. With a static input, its scale is a factor of them already (deq_scale)."""
    bias: Tensor | None
    """[out] float32."""
    static: StaticInput | None = None
    """None: inputs are quantised token by token."""


def quantize_rows(weight: Tensor, *, values: Tensor, scales: Tensor) -> None:
    """Quantise a weight, output by output.

    Args:
        weight: [out, in], of any float type.
        values: [out, in] int8, filled.
        scales: [out] float32, filled; 1 for a row of zeros.
    """
    step = max(1, _CHUNK_VALUES // max(1, weight.shape[1]))
    for low in range(0, len(weight), step):
        rows = slice(low, low + step)
        part = weight[rows].float()
        part_scales = scales_of_rows(part)
        scales[rows] = part_scales
        values[rows] = (part / part_scales.unsqueeze(1)).round_().to(torch.int8)


def relative_error(weight: Tensor, values: Tensor, scales: Tensor) -> float:
    """‖weight - scales * values‖ / ‖weight‖ in the Frobenius norm; 0 for a weight of zeros."""
    step = max(1, _CHUNK_VALUES // max(1, weight.shape[1]))
    wrong = whole = 0.0
    for low in range(0, len(weight), step):
        rows = slice(low, low + step)
        part = weight[rows].float()
        whole += float(torch.linalg.vector_norm(part)) ** 2
        off = torch.addcmul(part, values[rows].float(), scales[rows].unsqueeze(1), value=-1)
        wrong += float(torch.linalg.vector_norm(off)) ** 2
    return (wrong / whole) ** 0.5 if whole else 0.0


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise activations token by token, with the zero point SHIFT.

    Args:
        x: [tokens, in], of any float type.

    Returns:
        [tokens, in] uint8 and [tokens] float32.
    """
    x = x.float()
    scales = scales_of_rows(x)
    # By the reciprocal and not by a division, as in quantize_row.h.
    shifted = (x * scales.reciprocal().unsqueeze(1)).round_().add_(SHIFT)
    return shifted.to(torch.uint8), scales


def quantize_static(x: Tensor, static: StaticInput) -> Tensor:
    """Quantise activations by a given scale; values outside of the range are clamped.

    Args:
        x: [tokens, in], of any float type.
        static: Scale and zero point.

    Returns:
        [tokens, in] uint8.
    """
    # By the reciprocal and not by a division, as in quantize_row.h.
    shifted = (x.float() * (1.0 / static.scale)).add_(static.zero_point).round_()
    return shifted.clamp_(0, 255).to(torch.uint8)


def scales_of_rows(rows: Tensor) -> Tensor:
    """The largest magnitude over 127 along the last dimension; 1 where all is 0."""
    if not rows.shape[-1]:
        return rows.new_ones(rows.shape[:-1])
    # A tenth of the time that torch's norm of infinite order takes.
    largest = rows.abs().amax(dim=-1)
    # Any scale suits a row of zeros; 0 would divide 0 by 0. NaN must stay NaN, since the sampler
    # checks for it.
    return torch.where(largest == 0, 1.0, largest / LARGEST)
