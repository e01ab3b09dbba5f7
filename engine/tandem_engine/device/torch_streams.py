"""Streams of an accelerator, by the interface that torch has for all of them.

CUDA has it, and Ascend's torch_npu gives it to the device `npu` by the hooks of PrivateUse1.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import torch

from tandem_engine.device.streams import Job, Span

T = TypeVar("T")

_MILLISECOND_S: Final = 1e-3
_CLOCK: Final = time.perf_counter
_LONGEST_S: Final = 10.0
"""Seconds after which the clocks meet again, for which the host waits until a stream is empty.

A device counts milliseconds from where they met in 32 bits: to 1 µs after ten seconds, but to 8 ms
after a day. And two clocks are 0.1 ms apart after ten seconds, but seconds after a day.
"""


class AcceleratorEvent(Protocol):
    """The part of `torch.Event` that is used."""

    def record(self, stream: Any) -> None:
        """Mark the work that is in `stream` so far."""

    def synchronize(self) -> None:
        """Block the host until the marked work is done."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to `end`; both are done."""


class Accelerator:
    """Makes the streams and events of one device.

    Args:
        device: The device.
        new_stream: Makes a stream that is not the current one.
        current_stream: Finds the one that all work goes into.
        new_event: Makes an event that measures time.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        new_stream: Callable[[torch.device], Any] | None = None,
        current_stream: Callable[[torch.device], Any] | None = None,
        new_event: Callable[[torch.device], AcceleratorEvent] | None = None,
    ) -> None:
        self._device = device
        self._new_stream = new_stream or torch.Stream
        self._current_stream = current_stream or torch.accelerator.current_stream
        self._new_event = new_event or _timed_event
        # Where the clocks of host and device meet.
        self._origin: tuple[AcceleratorEvent, float] | None = None

    def current_stream(self, name: str) -> "TorchStream":
        """Return the stream that all other work of this thread goes into."""
        return TorchStream(name, self, self._current_stream(self._device))

    def stream(self, name: str) -> "TorchStream":
        """Return a new stream."""
        return TorchStream(name, self, self._new_stream(self._device))

    def mark(self, stream: Any) -> AcceleratorEvent:
        """Return a new event behind the work of `stream`.

        None is used twice: CANN takes a second record while a wait for the first one is queued
        for the same event.
        """
        event = self._new_event(self._device)
        event.record(stream)
        return event

    def seconds(self, event: AcceleratorEvent, stream: Any) -> float:
        """Return the time of an event that is done, in seconds of `time.perf_counter`."""
        if self._origin is None or _CLOCK() - self._origin[1] > _LONGEST_S:
            origin = self.mark(stream)
            origin.synchronize()
            self._origin = (origin, _CLOCK())
        origin, at_s = self._origin
        return at_s + origin.elapsed_time(event) * _MILLISECOND_S


class TorchStream:
    """A stream of an accelerator: `run` returns when the work is queued.

    Implements `streams.Stream`. Jobs that are waited for must be of the same accelerator.
    """

    def __init__(self, name: str, accelerator: Accelerator, stream: Any) -> None:
        self.name = name
        self._accelerator = accelerator
        self._stream = stream

    def run(self, work: Callable[[], T], *, after: Sequence[Job[Any]] = ()) -> "_QueuedJob[T]":
        """Queue the work; its kernels go into this stream."""
        for job in after:
            if not isinstance(job, _QueuedJob):
                raise TypeError(f"a stream of a device cannot wait for {job!r}; this is a bug")
            self._stream.wait_event(job.end)
        with self._stream:
            begin = self._accelerator.mark(self._stream)
            value = work()
            return _QueuedJob(value, begin, self._accelerator.mark(self._stream), self)

    def close(self) -> None:
        """Wait for all work."""
        self._stream.synchronize()

    def seconds(self, event: AcceleratorEvent) -> float:
        """Return the time of an event that is done."""
        return self._accelerator.seconds(event, self._stream)


class _QueuedJob(Generic[T]):
    """Work of an accelerator; implements `streams.Job`."""

    __slots__ = ("_begin", "_stream", "_value", "end")

    def __init__(
        self, value: T, begin: AcceleratorEvent, end: AcceleratorEvent, stream: TorchStream
    ) -> None:
        self._value, self._begin, self._stream = [value], begin, stream
        self.end = end

    def result(self) -> T:
        return self._value.pop()

    def wait(self) -> None:
        self.end.synchronize()

    def span(self) -> Span:
        return Span(self._stream.seconds(self._begin), self._stream.seconds(self.end))


def _timed_event(device: torch.device) -> AcceleratorEvent:
    return torch.Event(device, enable_timing=True)
