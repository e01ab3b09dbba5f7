"""Facts about the device of a replica, as data."""

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "npu"]
"""Backends of `device.registry`, as settings name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One rank's device, for people."""

    device: str
    """Name of the backend: cpu, npu."""
    name: str
    """Of the processor or card, as its maker calls it."""
    software: str
    """Kernels, or the versions of driver, CANN and torch_npu."""
    memory_bytes: int
    """Memory of the device that the rank may use."""
