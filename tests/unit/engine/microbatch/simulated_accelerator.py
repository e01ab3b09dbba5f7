"""A fake accelerator: streams that run in any order which their events allow.

It stands for CUDA and Ascend, of which there is none here: work is queued and runs later, memory
that is given back is handed out again at once to work of the same stream, and what runs next is
drawn. So a missing wait shows as a wrong value for some draw.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

Draw = Callable[[int], int]
"""Returns one of so many numbers."""


@dataclass
class Buffer:
    """Memory of a stream."""

    stream: "SimulatedStream"
    value: int = -1
    nbytes: int = 8


@dataclass
class SimulatedEvent:
    """A marker in the queue of a stream; the part of `torch.Event` that is used."""

    device: "SimulatedAccelerator"
    at_ms: float | None = None
    is_recorded: bool = False

    def record(self, stream: "SimulatedStream") -> None:
        assert not self.is_recorded, "an event is recorded once"
        self.is_recorded = True
        stream.queue.append(self._reach)

    def synchronize(self) -> None:
        while self.at_ms is None:
            self.device.run_one()

    def elapsed_time(self, end: "SimulatedEvent") -> float:
        assert self.at_ms is not None
        assert end.at_ms is not None
        return end.at_ms - self.at_ms

    def _reach(self) -> bool:
        self.at_ms = self.device.clock_ms
        return True


@dataclass
class SimulatedStream:
    """A queue of operations, each of which says whether it is done; like `torch.Stream`."""

    device: "SimulatedAccelerator"
    queue: deque[Callable[[], bool]] = field(default_factory=deque)
    free: list[Buffer] = field(default_factory=list)

    def wait_event(self, event: SimulatedEvent) -> None:
        assert event.is_recorded, "a wait for an event that is not recorded waits for nothing"
        self.queue.append(lambda: event.at_ms is not None)

    def synchronize(self) -> None:
        while self.queue:
            self.device.run_one()

    def __enter__(self) -> Self:
        self.device.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.device.entered.pop()


class SimulatedAccelerator:
    """The device: streams, the memory of each, and a clock."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.streams: list[SimulatedStream] = []
        self.clock_ms = 0.0
        self.entered = [self.stream()]

    def stream(self, _: Any = None) -> SimulatedStream:
        self.streams.append(SimulatedStream(self))
        return self.streams[-1]

    def current_stream(self, _: Any = None) -> SimulatedStream:
        return self.entered[-1]

    def event(self, _: Any = None) -> SimulatedEvent:
        return SimulatedEvent(self)

    def allocate(self) -> Buffer:
        """Return memory of the stream that is entered, used before where there is some."""
        stream = self.current_stream()
        return stream.free.pop() if stream.free else Buffer(stream)

    def give_back(self, buffer: Buffer) -> None:
        """Give memory back, as an allocator does where the last name of a tensor is gone."""
        buffer.stream.free.append(buffer)

    def launch(self, kernel: Callable[[], None]) -> None:
        """Queue a kernel in the stream that is entered."""

        def run() -> bool:
            kernel()
            return True

        self.current_stream().queue.append(run)

    def run_one(self) -> None:
        """Let one stream, which is drawn, do its next operation, if that can be done."""
        busy = [stream for stream in self.streams if stream.queue]
        assert busy, "the host waits for what is never done"
        first = self._draw(len(busy))
        for stream in busy[first:] + busy[:first]:
            self.clock_ms += 1.0
            if stream.queue[0]():
                stream.queue.popleft()
                return
        raise AssertionError("all streams wait for each other")
