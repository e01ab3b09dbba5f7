"""A linear layer whose weight lies in panels: see linear.h."""

import torch
from torch import Tensor

from tandem_engine.device.huge_pages import HugePages
from tandem_engine.device.native.library import Library, WeightArgs


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
