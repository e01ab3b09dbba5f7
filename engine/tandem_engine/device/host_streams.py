"""Streams of a processor: the calling thread, which waits for its work, and further threads."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

import torch

from tandem_engine.device.streams import Job, Span

T = TypeVar("T")

_CLOCK: Final = time.perf_counter


class DoneJob(Generic[T]):
    """Work that is done; implements `streams.Job`."""

    __slots__ = ("_span", "_value")

    def __init__(self, value: T, span: Span) -> None:
        self._value, self._span = [value], span

    def result(self) -> T:
        """See `Job`, as for all methods."""
        return self._value.pop()

    def wait(self) -> None:
        """Return at once."""

    def span(self) -> Span:
        """Return when it ran."""
        return self._span


class HostStream:
    """The thread that calls: work is done when `run` returns. Implements `streams.Stream`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, work: Callable[[], T], *, after: Sequence[Job[Any]] = ()) -> DoneJob[T]:
        """Wait for `after`, then do the work."""
        for job in after:
            job.wait()
        begin_s = _CLOCK()
        value = work()
        return DoneJob(value, Span(begin_s, _CLOCK()))

    def close(self) -> None:
        """Do nothing: all work is done."""


class ThreadStream:
    """A thread of its own, from its first work on; implements `streams.Stream`.

    Once a piece of work has failed, each later one fails with the same error: carried out, a
    collective would be another than the one that the other ranks are at.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name.replace(" ", "-"))
        self._failed: BaseException | None = None

    def run(self, work: Callable[[], T], *, after: Sequence[Job[Any]] = ()) -> "_ThreadJob[T]":
        """Have the thread wait for `after`, then do the work."""
        return _ThreadJob(self._thread.submit(self._carry_out, work, after))

    def close(self) -> None:
        """End the thread when all work is done."""
        self._thread.shutdown()

    def _carry_out(self, work: Callable[[], T], after: Sequence[Job[Any]]) -> DoneJob[T]:
        if self._failed is not None:
            raise self._failed
        try:
            for job in after:
                job.wait()
            # The mode is one of a thread.
            with torch.inference_mode():
                begin_s = _CLOCK()
                value = work()
                return DoneJob(value, Span(begin_s, _CLOCK()))
        except BaseException as error:
            self._failed = error
            raise


class _ThreadJob(Generic[T]):
    """Work of another thread; implements `streams.Job`."""

    __slots__ = ("_future",)

    def __init__(self, future: "Future[DoneJob[T]]") -> None:
        self._future = future

    def result(self) -> T:
        return self._future.result().result()

    def wait(self) -> None:
        self._future.result()

    def span(self) -> Span:
        return self._future.result().span()
