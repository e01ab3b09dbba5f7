"""The order of work in a device's streams, and the places where it lacks one.

Streams run side by side, but for events and for what the host has waited for. Each has a vector
clock (Mattern, "Virtual Time and Global States of Distributed Systems", 1989), and each part of
memory knows what has read and written it last, as detectors of races between threads do. So a
missing event is found whenever the code that lacks it runs, in whichever order work is carried out.
Memory that is given back may be handed out at once to the stream that it was made in.
"""

import sys
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor


class OrderError(AssertionError):
    """Work that an order of a device's streams would break."""


Clock = dict[int, int]
"""By stream: how much of its work comes before."""

_PRODUCT: Final = "/tandem_engine/"


class Part(NamedTuple):
    """Memory that work touches."""

    tensor: Tensor
    """In main memory, of which the device's tensors are made."""
    rows: Tensor | None = None
    """[n] int64: those of the first dimension; None: all."""


@dataclass(frozen=True, slots=True)
class StreamClock:
    """A stream, by what comes before its next work."""

    number: int
    clock: Clock
    keeps_memory: bool = False
    """True: as long as its work needs it, whoever gives it back, as a process group's stream does
    (torch: `record_stream`)."""

    def comes_behind(self, clock: Mapping[int, int]) -> None:
        """Have all that is put in from now on wait for it."""
        for number, at in clock.items():
            self.clock[number] = max(self.clock.get(number, 0), at)


class Order:
    """All streams of a device, and its memory."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        """Work that may run too early, each pair of functions once."""
        self.host = StreamClock(-1, {})
        """What the host knows to be done."""
        self._streams: list[StreamClock] = []
        self._given_back = defaultdict[int, list[tuple[Clock, str]]](list)
        self._work: dict[tuple[int, int], str] = {}
        self._lock = RLock()

    def new_stream(self, *, keeps_memory: bool = False) -> StreamClock:
        """Return a stream without work."""
        with self._lock:
            self._streams.append(StreamClock(len(self._streams), {}, keeps_memory))
            return self._streams[-1]

    def check(self) -> None:
        """Raise the faults that were found since the last call."""
        faults, self.faults = self.faults, []
        if faults:
            raise OrderError("\n".join(faults))

    def mark(self, stream: StreamClock) -> Clock:
        """Return the point behind all that is in a stream."""
        with self._lock:
            return dict(self._next(stream, "an event"))

    def is_done(self, number: int, at: int) -> bool:
        """Return True if the host knows that this work of a stream is done."""
        return at <= self.host.clock.get(number, 0)

    def host_waits(self, until: Clock) -> None:
        """Let the host know that this is done, which is then in order with all that comes."""
        with self._lock:
            self.host.comes_behind(until)
            self._work = {at: name for at, name in self._work.items() if not self.is_done(*at)}

    def put(
        self, stream: StreamClock, name: str, reads: Sequence[Part], writes: Sequence[Part]
    ) -> int:
        """Put work in, and note what it may not run beside. Returns its place in the stream."""
        with self._lock:
            self._next(stream, f"{name} of {function_of_product()}")
            for part in reads:
                self._memory(part.tensor, stream).read(part, stream)
            for part in writes:
                self._memory(part.tensor, stream).write(part, stream)
            return stream.clock[stream.number]

    def makes(self, stream: StreamClock, tensor: Tensor) -> None:
        """Note that the last work of a stream has made a tensor, unless it is a view."""
        with self._lock:
            if not hasattr(tensor.untyped_storage(), "memory"):
                stream.comes_behind(self.host.clock)
                self._hand_out(stream)
                self._memory(tensor, stream).write(Part(tensor), stream)

    def is_early(self, stream: StreamClock, sentence: str, first: tuple[int, int]) -> None:
        """Note that the last work of a stream is in no order with other work."""
        last = self._work[stream.number, stream.clock[stream.number]]
        self.found(f"{last} {sentence} {self._work[first]}")

    def found(self, fault: str) -> None:
        """Note a fault."""
        if fault not in self.faults:
            self.faults.append(fault)

    def _next(self, stream: StreamClock, name: str) -> Clock:
        stream.comes_behind(self.host.clock)
        stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
        self._work[stream.number, stream.clock[stream.number]] = name
        return stream.clock

    def _memory(self, tensor: Tensor, stream: StreamClock) -> "_Memory":
        storage: Any = tensor.untyped_storage()
        if not hasattr(storage, "memory"):
            storage.memory = _Memory(self, stream, tensor.element_size())
            weakref.finalize(storage, self._is_given_back, storage.memory).atexit = False
        memory: _Memory = storage.memory
        return memory

    def _hand_out(self, stream: StreamClock) -> None:
        """Give work of a stream what was made in it before, and is not needed any more."""
        given_back, self._given_back[stream.number] = self._given_back[stream.number], []
        for needed, by in given_back:
            for number, at in needed.items():
                if at > stream.clock.get(number, 0) and not self._streams[number].keeps_memory:
                    work = self._work[number, at]
                    self.found(
                        f"{function_of_product()} may have memory that {by} gave back of {work}"
                    )

    def _is_given_back(self, memory: "_Memory") -> None:
        with self._lock:
            self._given_back[memory.made_in.number].append((memory.needed(), function_of_product()))


@dataclass
class _Touches:
    """Places of the last work of each stream that has touched a piece of memory in one way."""

    at: dict[int, Tensor] = field(default_factory=dict)
    """By stream: [units] int32."""
    last: Clock = field(default_factory=dict)
    """By stream: the largest of them."""

    def of(self, number: int, num_units: int) -> Tensor:
        """[units]: the places of one stream; memory may have grown."""
        at = self.at.get(number, torch.zeros(0, dtype=torch.int32))
        if len(at) < num_units:
            at = torch.cat((at, at.new_zeros(num_units - len(at))))
            self.at[number] = at
        return at


@dataclass
class _Memory:
    """A piece of memory."""

    order: Order
    made_in: StreamClock
    unit: int
    """Bytes of the smallest part."""
    _read: _Touches = field(default_factory=_Touches)
    _written: _Touches = field(default_factory=_Touches)

    def read(self, part: Part, stream: StreamClock) -> None:
        """Have what a stream has put in last read a part."""
        self._check(self._written, part, stream, "may read what is not yet written by")
        self._note(self._read, part, stream)

    def write(self, part: Part, stream: StreamClock) -> None:
        """Have it write one."""
        self._check(self._written, part, stream, "may write before")
        self._check(self._read, part, stream, "may write what is still to be read by")
        self._note(self._written, part, stream)

    def needed(self) -> Clock:
        """Return the work that needs it, by stream."""
        needed = StreamClock(-1, dict(self._written.last))
        needed.comes_behind(self._read.last)
        return needed.clock

    def _check(self, touches: _Touches, part: Part, stream: StreamClock, sentence: str) -> None:
        for number, last in touches.last.items():
            known = stream.clock.get(number, 0)
            if last <= known:
                continue
            at = self._units(touches, number, part)
            if at.numel() and (latest := int(at.max())) > known:
                self.order.is_early(stream, sentence, (number, latest))

    def _note(self, touches: _Touches, part: Part, stream: StreamClock) -> None:
        place = stream.clock.get(stream.number, 0)
        units = self._units(touches, stream.number, Part(part.tensor))
        if part.rows is None:
            units.fill_(place)
        else:
            units[part.rows] = place
        touches.last[stream.number] = place

    def _units(self, touches: _Touches, number: int, part: Part) -> Tensor:
        """Those of a part; of a tensor with smaller numbers all from its first to its last one."""
        tensor, size = part.tensor, part.tensor.element_size()
        of_memory = touches.of(number, tensor.untyped_storage().nbytes() // self.unit)
        begin, strides = tensor.storage_offset() * size, [each * size for each in tensor.stride()]
        if size < self.unit:
            last = sum((n - 1) * stride for n, stride in zip(tensor.size(), strides, strict=True))
            end = begin + last + size if tensor.numel() else begin
            return of_memory[begin // self.unit : -(-end // self.unit)]
        units = of_memory.as_strided(
            tensor.size(), [stride // self.unit for stride in strides], begin // self.unit
        )
        return units if part.rows is None else units[part.rows]


def function_of_product() -> str:
    """`module.function` of the product that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        _, is_there, path = frame.f_code.co_filename.rpartition(_PRODUCT)
        if is_there:
            return f"{path.removesuffix('.py').replace('/', '.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "a test"
