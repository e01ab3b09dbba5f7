"""Packing of linear layers, from a checkpoint into the layout that a device's kernels multiply.

Rows go there straight from the file, so that no weight is held twice and none is copied twice.
"""

from typing import Protocol

import torch
from torch import Tensor

from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.quantization.int8 import Int8Weight, StaticInput


class LinearPacking(Protocol):
    """A linear layer whose rows are handed over in any order, each once."""

    def put(self, first: int, rows: Tensor) -> None:
        """Take the outputs `first` and up.

        Args:
            first: The first output.
            rows: [n, in] of any float type, on the host; not kept.
        """

    def finish(self, bias: Tensor | None) -> PackedLinear:
        """The layer, once all rows are there; `bias`, [out] in `computed_in`, is kept."""


class Int8Packing(Protocol):
    """The same for a layer in 8 bits."""

    def put(self, first: int, rows: Tensor) -> None:
        """Take the outputs `first` and up: [n, in] int8, on the host; not kept."""

    def finish(
        self, scales: Tensor, bias: Tensor | None, static: StaticInput | None
    ) -> PackedLinear:
        """The layer, once all rows are there; for the others see `Int8Weight`."""


class PackingKernels(Protocol):
    """The part of `runtime.Kernels` that loading a model needs."""

    def computed_in(self, dtype: torch.dtype) -> torch.dtype:
        """Type of activations, norms and biases where weights are of `dtype`."""

    def packing(
        self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device | str
    ) -> LinearPacking:
        """A layer of so many outputs and inputs, whose weights are of `dtype`."""

    def packing_int8(
        self, outputs: int, inputs: int, device: torch.device | str, *, is_static: bool
    ) -> Int8Packing:
        """A layer in 8 bits; `linear` quantises what comes in, by a given scale if static."""


class ShapesOnly:
    """Packs nothing: for parameters on the device `meta`, which have shapes but no memory."""

    def computed_in(self, dtype: torch.dtype) -> torch.dtype:
        """The same."""
        return dtype

    def packing(self, *_layer: object) -> LinearPacking:
        """One that is never filled."""
        return _NullPacking()

    def packing_int8(self, *_layer: object, is_static: bool) -> Int8Packing:  # noqa: ARG002
        """One that is never filled."""
        return _NullPacking()


class _NullPacking:
    def put(self, first: int, rows: Tensor) -> None:
        raise _never_filled(first, rows)

    def finish(self, *parts: object) -> PackedLinear:
        raise _never_filled(*parts)


def _never_filled(*given: object) -> Exception:
    return AssertionError(f"only shapes are packed, but {len(given)} values came; this is a bug")


def pack(
    kernels: PackingKernels,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    device: torch.device | None = None,
) -> PackedLinear:
    """Pack a weight [out, in] that is there as a whole: in tests, benchmarks and `doctor`.

    Args:
        kernels: Those that will read it.
        weight: Of any device.
        bias: [out], on the device of the layer.
        device: Of the layer; None: that of the weight.
    """
    outputs, inputs = weight.shape
    packing = kernels.packing(outputs, inputs, weight.dtype, device or weight.device)
    packing.put(0, weight)
    return packing.finish(bias)


def pack_int8(
    kernels: PackingKernels, weight: Int8Weight, *, device: torch.device | None = None
) -> PackedLinear:
    """The same for a layer in 8 bits, whose scales and bias are on its device."""
    outputs, inputs = weight.values.shape
    packing = kernels.packing_int8(
        outputs, inputs, device or weight.values.device, is_static=weight.static is not None
    )
    packing.put(0, weight.values)
    return packing.finish(weight.scales, weight.bias, weight.static)
