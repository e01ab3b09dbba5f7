"""A fake accelerator whose streams are threads, and a communicator that queues calls in them.

What torch computes runs in the thread that calls, as soon as the stream that is entered has done
all that is in it: so within a stream all is in order, as on a device. Between streams nothing is in
order but by events: each keeps a vector clock, and memory that another stream has written is an
error for work that does not wait for it, however early that was written here.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, Self

import torch
import torch.multiprocessing.reductions
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tandem_engine.device.stream_layouts import StreamsBy, arrange
from tandem_engine.device.streams import StreamLayout
from tandem_engine.device.torch_streams import Accelerator
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.silence import Silence
from tandem_engine.parallel.world import WORLD, WorldShape
from tests.patience import HANG_S

_WeakStorage: Final[Any] = torch.multiprocessing.reductions.StorageWeakRef  # without types
Clock = dict["LateStream", int]
"""By stream: how much of its work comes before."""
LATE_S: Final = 0.001
"""So much later than it could be a collective is done: time to read its tensor too early."""


class LateEvent:
    """A marker in a stream; the part of `torch.Event` that is used."""

    def __init__(self, _: Any = None) -> None:
        self._reached = threading.Event()
        self._at_s = 0.0
        self._stream: LateStream | None = None
        self.clock: Clock = {}

    def record(self, stream: "LateStream") -> None:
        self._stream, self.clock = stream, dict(stream.clock)
        stream.put(self._reach)

    def synchronize(self) -> None:
        """Have the host wait, and with it all that it does from now on."""
        self.wait()
        assert self._stream is not None
        merge(self._stream.device.host, self.clock)

    def wait(self) -> None:
        assert self._reached.wait(HANG_S), "what is waited for is never done"

    def elapsed_time(self, end: "LateEvent") -> float:
        return (end._at_s - self._at_s) * 1e3

    def _reach(self) -> None:
        self._at_s = time.perf_counter()
        self._reached.set()


class Write(NamedTuple):
    """The last work that has written some memory."""

    stream: "LateStream"
    at: int
    """By the clock of its stream."""
    storage: Any
    """Memory that was given back can come again as that of an array, which is the host's."""


class LateStream:
    """A queue of a thread; like `torch.Stream`."""

    def __init__(self, device: "LateAccelerator") -> None:
        self.device = device
        self.clock: Clock = {self: 0}
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def put(self, work: Callable[[], None]) -> None:
        self._last = self._thread.submit(work)

    def wait_event(self, event: LateEvent) -> None:
        merge(self.clock, event.clock)
        self.put(event.wait)

    def touch(self, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Note what work does to memory, and make sure that its stream has what it reads."""
        merge(self.clock, self.device.host)
        self.clock[self] += 1
        for tensor in read:
            write = self.device.writers.get(_memory(tensor))
            is_late = write is not None and self.clock.get(write.stream, 0) < write.at
            if write is not None and is_late and not write.storage.expired():
                raise AssertionError(f"{tensor.shape} is read before it is written")
        for tensor in written:
            storage = _WeakStorage(tensor.untyped_storage())
            self.device.writers[_memory(tensor)] = Write(self, self.clock[self], storage)

    def synchronize(self) -> None:
        if self._last is not None:
            self._last.result(HANG_S)
            self._last = None

    def __enter__(self) -> Self:
        # An operation is to be seen once, however many streams are entered one in another.
        mode = nullcontext() if self.device.entered else _InOrder(self.device)
        mode.__enter__()
        self.device.entered.append((self, mode))
        return self

    def __exit__(self, *error: object) -> None:
        _, mode = self.device.entered.pop()
        mode.__exit__(*error)


class _InOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Has each operation of a thread wait for what is in the stream that it is in."""

    def __init__(self, device: "LateAccelerator") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._device = device

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        stream = self._device.current_stream()
        stream.synchronize()
        result = func(*args, **(kwargs or {}))
        stream.touch(_tensors((args, kwargs)), _tensors(result))
        return result


class LateAccelerator:
    """The device."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self.host: Clock = {}
        self.writers: dict[int, Write] = {}
        """By memory: what has written it last."""
        self.default = LateStream(self)

    @property
    def entered(self) -> list[Any]:
        """Streams that this thread has entered."""
        found: list[Any] = self._of_thread.__dict__.setdefault("entered", [])
        return found

    def current_stream(self, _: Any = None) -> LateStream:
        """Return the one that this thread is in."""
        stream: LateStream = self.entered[-1][0] if self.entered else self.default
        return stream

    def streams(self, by: StreamsBy) -> StreamLayout:
        """Return the streams of a rank."""
        accelerator = Accelerator(
            torch.device("meta"),
            new_stream=lambda _: LateStream(self),
            current_stream=self.current_stream,
            new_event=LateEvent,
        )
        current = accelerator.current_stream("compute")
        return arrange(current, accelerator.stream, by, later=accelerator.stream("later"))


class LateCommunicator:
    """Queues each call of another communicator in the stream that it is made in.

    Implements `Communicator` as one of NCCL or HCCL does: faults show after the call.
    """

    def __init__(self, communicator: Communicator, device: LateAccelerator) -> None:
        self._communicator = communicator
        self._device = device
        self._failure: CollectiveError | None = None

    @property
    def rank(self) -> int:
        return self._communicator.rank

    @property
    def shape(self) -> WorldShape:
        return self._communicator.shape

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> None:
        self._put(partial(self._communicator.all_reduce, tensor, group), [tensor], [tensor])

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        self._put(partial(self._communicator.reduce_scatter, out, tensor, group), [tensor], [out])

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        self._put(partial(self._communicator.all_gather, out, tensor, group), [tensor], [out])

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        self._put(partial(self._communicator.broadcast, tensor, source, group), [tensor], [tensor])

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        self._put(partial(self._communicator.send, tensor, target, group), [tensor], [])

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        self._put(partial(self._communicator.receive, tensor, source, group), [], [tensor])

    def handle(self, group: str) -> str:
        return self._communicator.handle(group)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def expect(self, seconds: float) -> None:
        self._communicator.expect(seconds)

    def silence_of(self, rank: int) -> Silence:
        return self._communicator.silence_of(rank)

    def failure(self) -> str | None:
        return self._communicator.failure()

    def abort(self, cause: str) -> None:
        self._communicator.abort(cause)

    def close(self) -> None:
        self._communicator.close()

    def _put(
        self, call: Callable[[], None], read: Sequence[Tensor], written: Sequence[Tensor]
    ) -> None:
        self.check()
        stream = self._device.current_stream()
        stream.touch(read, written)
        stream.put(partial(self._carry_out, call))

    def _carry_out(self, call: Callable[[], None]) -> None:
        time.sleep(LATE_S)
        if self._failure is None:
            try:
                call()
            except CollectiveError as error:
                self._failure = error


def merge(clock: Clock, other: Clock) -> None:
    """Put all that `other` comes behind before what `clock` stands for, too."""
    for stream, at in other.items():
        clock[stream] = max(clock.get(stream, 0), at)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
