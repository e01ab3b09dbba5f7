"""Memory of a device, and of the host beside it, for what a replica keeps from start to end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.device.cpu.huge_pages import zeros_in_huge_pages
from tandem_engine.device.host_memory import has_queue


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return a tensor of zeros on a device; on a CPU it lies in huge pages."""
    if torch.device(device).type == "cpu":
        return zeros_in_huge_pages(shape, dtype)
    return torch.zeros(tuple(shape), dtype=dtype, device=device)


def host_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return a tensor of zeros in main memory, for copies to and from a device.

    It is pinned where these can be late: only then do they run by themselves, at full speed.
    """
    return torch.zeros(tuple(shape), dtype=dtype, pin_memory=has_queue(device))
