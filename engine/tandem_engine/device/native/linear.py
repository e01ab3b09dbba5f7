"""Linear layers whose weights lie in panels: see linear.h and linear_int8.h."""

import torch
from torch import Tensor

from tandem_engine.device.huge_pages import HugePages
from tandem_engine.device.native.library import Int8WeightArgs, Library, WeightArgs


class PanelLinear:
    """x @ weight.T + bias for float32 or bfloat16.

    Args:
        library: The kernels, whose variant decides on the layout.
        pages: Where the panels go.
        weight: [out, in], `in` even.
        bias: [out].
    """

    keeps_weight = False

    def __init__(
        self, library: Library, pages: HugePages, weight: Tensor, bias: Tensor | None
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self.dtype: torch.dtype = weight.dtype
        self.bias = bias
        """[out]; the library reads it where it is."""
        padded = -(-self.outputs // library.panel) * library.panel
        self.panels = pages.empty(padded * self.inputs, weight.dtype)
        weight = weight.contiguous()
        library("pack", weight.dtype)(
            weight.data_ptr(), self.outputs, self.inputs, self.panels.data_ptr()
        )
        self.args = WeightArgs(
            self.panels.data_ptr(),
            None if bias is None else bias.data_ptr(),
            self.inputs,
            self.outputs,
        )
        """As the library takes it."""


class Int8PanelLinear:
    """x @ weight.T + bias for weights of int8 and rows that are quantised as they come (W8A8).

    Args:
        library: The kernels, whose variant decides on the layout.
        pages: Where the panels go.
        weight: [out, in] int8, `in` a multiple of 4.
        scales: [out] float32: the weight is weight * scales[:, None].
        bias: [out]; kept in float32.
    """

    keeps_weight = False

    def __init__(
        self,
        library: Library,
        pages: HugePages,
        weight: Tensor,
        scales: Tensor,
        bias: Tensor | None,
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self.scales = scales.float().contiguous()
        self.bias = None if bias is None else bias.float().contiguous()
        self.sums = torch.empty(self.outputs, dtype=torch.int32)
        """[out]: of each row of the weight, for the zero point of the quantised rows."""
        padded = -(-self.outputs // library.panel) * library.panel
        self.panels = pages.empty(padded * self.inputs, torch.int8)
        weight = weight.contiguous()
        library.pack_int8(
            weight.data_ptr(),
            self.outputs,
            self.inputs,
            self.panels.data_ptr(),
            self.sums.data_ptr(),
        )
        self.args = Int8WeightArgs(
            self.panels.data_ptr(),
            self.scales.data_ptr(),
            self.sums.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            self.inputs,
            self.outputs,
        )
        """As the library takes it."""
