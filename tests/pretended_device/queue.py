"""The queue of a pretended device, which notes each time that the host waits for it."""

from collections import Counter
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from tests.pretended_device.order import Clock, Order, Part, StreamClock, function_of_product

_POISON: Final = 0x7F
"""Byte of what is not there yet: a number in no type that a token, a place or a weight would be."""


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
    order: Order = field(default_factory=Order)
    """Of all streams' work."""
    _copies: list[tuple[int, int, _Copy]] = field(default_factory=list)
    """Those that are late, with their streams and places."""
    _lock: Any = field(default_factory=RLock)

    def wait(self, until: Clock) -> None:
        """Have the host wait, unless it has for something behind it; see `Order.mark`."""
        with self._lock:
            if all(self.order.is_done(*place) for place in until.items()):
                return
            self.waits[function_of_product()] += 1
            self.order.host_waits(until)
            done = [copy for *place, copy in self._copies if self.order.is_done(*place)]
            self._copies = [late for late in self._copies if not self.order.is_done(*late[:2])]
            for copy in done:
                copy.finish()

    def copy_to_host(self, stream: StreamClock, host: Tensor, values: Tensor) -> None:
        """Begin a copy: until the host has waited, it finds nonsense."""
        at = self.order.put(stream, "a copy to the host", [Part(values)], [Part(host)])
        with self._lock:
            self._copies.append((stream.number, at, _ToHost(host, values.clone())))
        _bytes(host).fill_(_POISON)

    def copy_to_device(self, stream: StreamClock, host: Tensor, target: Tensor) -> None:
        """Begin a copy from pinned memory, which the host may not change before it has waited."""
        at = self.order.put(stream, "a copy from the host", [Part(host)], [Part(target)])
        values = self._queued_values(host)
        if values is None:
            values = host.clone()
            with self._lock:
                self._copies.append((stream.number, at, _ToDevice(host, values)))
        target.copy_(values)

    def _queued_values(self, host: Tensor) -> Tensor | None:
        """Return what earlier copies of the queue will have put there; None: nothing."""
        with self._lock:
            for *_, copy in reversed(self._copies):
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
