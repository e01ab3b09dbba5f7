"""Linear layers whose weights lie in panels: see linear.h and linear_int8.h."""

import torch
from torch import Tensor

from tandem_engine.device.cpu.huge_pages import HugePages
from tandem_engine.device.cpu.native.library import (
    InputArgs,
    Int8WeightArgs,
    Library,
    WeightArgs,
    computed_in,
)
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.quantization.int8 import SHIFT, StaticInput


class PanelLinear(PackedLinear):
    """x @ weight.T + bias for float32, bfloat16, or float16 with x in float32.

    Args:
        panels: The packed weight.
        outputs: How many it has.
        inputs: How many it has.
        bias: [out], of the type of x.
    """

    def __init__(self, panels: Tensor, outputs: int, inputs: int, bias: Tensor | None) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.dtype: torch.dtype = panels.dtype
        self.computed_in = computed_in(self.dtype)
        """Type of x and of the result."""
        self.bias = bias
        """[out]; the library reads it where it is."""
        self.panels = panels
        self.args = WeightArgs(panels.data_ptr(), _address(bias), inputs, outputs)
        """As the library takes it."""


class PanelPacking:
    """See `packing.LinearPacking`.

    Args:
        library: The kernels, whose variant decides on the layout.
        pages: Where the panels go.
        outputs: How many the layer has.
        inputs: How many it has; even.
        dtype: float32, bfloat16 or float16.
    """

    def __init__(
        self, library: Library, pages: HugePages, outputs: int, inputs: int, dtype: torch.dtype
    ) -> None:
        self._outputs, self._inputs = outputs, inputs
        self._pack = library("pack", dtype)
        self._panels = pages.empty(library.padded(outputs) * inputs, dtype)

    def put(self, first: int, rows: Tensor) -> None:
        """Cut them into the panels where they belong."""
        rows = rows.to(self._panels.dtype).contiguous()
        self._pack(rows.data_ptr(), first, len(rows), self._inputs, self._panels.data_ptr())

    def finish(self, bias: Tensor | None) -> PanelLinear:
        """The layer of all rows that were put."""
        return PanelLinear(self._panels, self._outputs, self._inputs, bias)


class Int8PanelLinear(PackedLinear):
    """x @ weight.T + bias for weights of int8 and rows that are quantised as they come (W8A8).

    Args:
        panels: The packed weight.
        sums: [out] int32: of each row of the weight, for the zero point of the quantised rows.
        inputs: How many there are.
        scales: [out] float32: the weight is weight * scales[:, None]; see `Int8Weight`.
        bias: [out]; kept in float32.
        static: How rows are quantised; None: each by its own largest magnitude.
    """

    def __init__(
        self,
        panels: Tensor,
        sums: Tensor,
        inputs: int,
        scales: Tensor,
        bias: Tensor | None,
        *,
        static: StaticInput | None,
    ) -> None:
        self.outputs, self.inputs = len(sums), inputs
        self.panels, self.sums = panels, sums
        self.static = static
        self.scales = scales.float().contiguous()
        self.bias = None if bias is None else bias.float().contiguous()
        self.args = Int8WeightArgs(
            panels.data_ptr(),
            self.scales.data_ptr(),
            sums.data_ptr(),
            _address(self.bias),
            inputs,
            self.outputs,
            input_args(static),
        )
        """As the library takes it."""


class Int8PanelPacking:
    """See `packing.Int8Packing`.

    Args:
        library: The kernels, whose variant decides on the layout.
        pages: Where the panels go.
        outputs: How many the layer has.
        inputs: How many it has; a multiple of 4.
    """

    def __init__(self, library: Library, pages: HugePages, outputs: int, inputs: int) -> None:
        self._inputs = inputs
        self._pack = library.pack_int8
        self._panels = pages.empty(library.padded(outputs) * inputs, torch.int8)
        self._sums = torch.empty(outputs, dtype=torch.int32)

    def put(self, first: int, rows: Tensor) -> None:
        """Cut them into the panels where they belong, and add each of them up."""
        rows = rows.contiguous()
        self._pack(
            rows.data_ptr(),
            first,
            len(rows),
            self._inputs,
            self._panels.data_ptr(),
            self._sums.data_ptr(),
        )

    def finish(
        self, scales: Tensor, bias: Tensor | None, static: StaticInput | None
    ) -> Int8PanelLinear:
        """The layer of all rows that were put."""
        return Int8PanelLinear(self._panels, self._sums, self._inputs, scales, bias, static=static)


def input_args(static: StaticInput | None) -> InputArgs:
    """Quantisation of rows; None: each by its own largest magnitude."""
    return InputArgs(static.scale, static.zero_point) if static else InputArgs(0.0, SHIFT)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
