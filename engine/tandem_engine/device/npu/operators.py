"""torch_npu's operators, as `torch.ops` has them once the package is imported."""

from typing import Any

import torch


def npu() -> Any:
    """Return the namespace of the operators, which the stubs of torch do not know."""
    return torch.ops.npu
