"""The queue of a pretended device, which notes each time that the host waits for it."""

import traceback
from collections import Counter
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, Protocol

import torch
from torch import Tensor

_POISON: Final = 0x7F
"""Byte of what is not there yet: a number in no type that a token, a place or a weight would be."""
_PRODUCT: Final = "/tandem_engine/"


class DeviceError(AssertionError):
    """A fault that a device would refuse, or get wrong in silence."""


class _Copy(Protocol):
    """A copy for which the host does not wait."""

    host: Tensor
    """Its pinned memory."""

    def finish(self) -> None:
        """Be carried out."""


@dataclass
class _ToHost:
    host: Tensor
    values: Tensor

    @torch.inference_mode()
    def finish(self) -> None:
        self.host.copy_(self.values)


@dataclass
class _ToDevice:
    host: Tensor
    values: Tensor

    def finish(self) -> None:
        if not torch.equal(_bytes(self.host), _bytes(self.values)):
            raise DeviceError(f"the host changed {_name(self.host)} while the device copied it")


@dataclass
class Queue:
    """Work is done when it is queued, but for copies to and from the host: they are late."""

    waits: Counter[str] = field(default_factory=Counter)
    """Times that the host has waited: by the function of the product that did."""
    _copies: list[tuple[int, _Copy]] = field(default_factory=list)
    """Those that are late, with their places."""
    _place: int = 0
    """Of the last copy or mark."""
    _done: int = 0
    """Up to this place the host knows all to be done."""
    _lock: Any = field(default_factory=RLock)

    def wait(self, until: int | None = None) -> None:
        """Have the host wait, unless it has for something behind it; see `mark`.

        None: for all that is queued.
        """
        with self._lock:
            if until is not None and until <= self._done:
                return
            self.waits[_waiting()] += 1
            self._done = self._place if until is None else until
            while self._copies and self._copies[0][0] <= self._done:
                self._copies.pop(0)[1].finish()

    def mark(self) -> int:
        """Return the place behind all that is queued now."""
        with self._lock:
            self._place += 1
            return self._place

    def copy_to_host(self, host: Tensor, values: Tensor) -> None:
        """Begin a copy: until the host has waited, it finds nonsense."""
        self._begin(_ToHost(host, values.clone()))
        _bytes(host).fill_(_POISON)

    def copy_to_device(self, host: Tensor) -> Tensor:
        """Begin a copy; return its values, which the host may not change before it has waited."""
        values = self._queued_values(host)
        if values is None:
            values = host.clone()
            self._begin(_ToDevice(host, values))
        return values

    def _begin(self, copy: _Copy) -> None:
        with self._lock:
            self._copies.append((self.mark(), copy))

    def _queued_values(self, host: Tensor) -> Tensor | None:
        """Return what earlier copies of the queue will have put there; None: nothing."""
        with self._lock:
            for _, copy in reversed(self._copies):
                if isinstance(copy, _ToHost) and copy.host.data_ptr() == host.data_ptr():
                    return copy.values.view_as(host).clone()
        return None


def _bytes(tensor: Tensor) -> Tensor:
    """All bytes of a tensor without gaps."""
    if not tensor.is_contiguous():
        raise DeviceError(f"{_name(tensor)} is not one piece of pinned memory")
    # The stride of one number may be anything.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _name(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _waiting() -> str:
    """`module.function` of the product that makes the host wait."""
    for frame in reversed(traceback.extract_stack()):
        _, is_there, path = frame.filename.rpartition(_PRODUCT)
        if is_there:
            return f"{path.removesuffix('.py').replace('/', '.')}.{frame.name}"
    return "a test"
