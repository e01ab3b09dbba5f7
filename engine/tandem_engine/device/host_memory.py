"""Copies between the host and a device for which the host does not wait.

Only pinned memory can be copied so. torch keeps such memory in a pool of its own, in which no piece
is used again before the device has read it.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WITHOUT_QUEUE: Final = ("cpu", "meta")
"""Devices that compute at once, or not at all."""


def has_queue(device: torch.device | str) -> bool:
    """Return True where work is queued, and the host that reads a tensor waits for it."""
    return torch.device(device).type not in _WITHOUT_QUEUE


def to_device(array: npt.NDArray[Any], device: torch.device | str) -> Tensor:
    """Return a tensor of `device` with the numbers of `array`, behind all that is queued there.

    On the CPU it is the array's own memory; elsewhere the array may change at once.
    """
    tensor = torch.from_numpy(array)
    if has_queue(device):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def ints_to_device(numbers: Sequence[int], device: torch.device | str) -> Tensor:
    """Return int64 `numbers` as a tensor of `device`."""
    return to_device(np.array(numbers, dtype=np.int64), device)


class HostInts:
    """Numbers that the host lays a step out by, and the device reads, too.

    Args:
        array: int64; not changed from here on.
        device: Gets them when it first needs them.
    """

    __slots__ = ("_tensor", "array", "device")

    def __init__(self, array: npt.NDArray[np.int64], device: torch.device | str) -> None:
        self.array, self.device = array, device
        self._tensor: Tensor | None = None

    @classmethod
    def of(cls, numbers: Sequence[int], device: torch.device | str) -> "HostInts":
        """Return those of a list."""
        return cls(np.array(numbers, dtype=np.int64), device)

    @property
    def tensor(self) -> Tensor:
        """The same, on the device."""
        if self._tensor is None:
            self._tensor = to_device(self.array, self.device)
        return self._tensor

    def __len__(self) -> int:
        return len(self.array)


class HostCopy:
    """A tensor on its way to the host, from when the work that is queued so far is done.

    What is queued later is not waited for, as `Tensor.cpu` would: its copy comes last.
    """

    __slots__ = ("_event", "_values")

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.Event | None = None
        self._values = tensor
        if tensor.is_cpu:
            return
        self._values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._values.copy_(tensor, non_blocking=True)
        self._event = torch.Event(tensor.device)
        self._event.record()

    def wait(self) -> Tensor:
        """Return the values, on the host, when they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._values
