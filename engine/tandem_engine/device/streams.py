"""The streams of a device: what a step is computed and communicated on.

A stream carries out work in the order in which it comes. Work of two streams runs side by side,
but for what one is told to wait for. There is no separate event to record: a job is the point
behind its own work and nothing else, so that none can be marked too late or twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Span(NamedTuple):
    """Begin and end of a job, in seconds of `time.perf_counter`."""

    begin_s: float
    end_s: float


class Job(Protocol[T_co]):
    """Work in a stream, and the point at which it is done."""

    def result(self) -> T_co:
        """Return what the work has returned; a device may still be computing it.

        To be called once: a job that is kept for its times holds no memory of its work.

        Raises:
            Exception: The work, or work that it was to wait for, has failed.
        """

    def wait(self) -> None:
        """Block the host until the work is done.

        Raises:
            Exception: As `result`.
        """

    def span(self) -> Span:
        """Return when the work ran; to be called when it is done."""


class Stream(Protocol):
    """A queue of work. One thread puts work in."""

    @property
    def name(self) -> str:
        """Its name in timelines."""

    def run(self, work: Callable[[], T], *, after: Sequence[Job[Any]] = ()) -> Job[T]:
        """Carry out `work` behind all that was put in before, and behind the jobs of `after`.

        It may be done when the call returns, or not even begun. Memory that the work reads or
        writes has to be kept until the job is done, or until work that waits for it is next.

        Args:
            work: Called once, by this thread or another one, at some time.
            after: Jobs of any stream of the same device.

        Raises:
            Exception: `work`, or what it was to wait for, has failed already.
        """

    def close(self) -> None:
        """Wait for all work, and free what the stream holds. May be called again."""


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The streams of a rank: of the two halves of a step, and of what goes between stages."""

    current: Stream
    """That of all other work of the rank: halves begin behind it, and it goes on behind them."""
    compute: tuple[Stream, Stream]
    """Those that each half computes on."""
    communication: tuple[Stream, Stream]
    """Those that each half communicates on."""
    send: Stream
    """That of what goes to the next stage, which may read it later."""
    later: Stream
    """That of logits which other ranks compute; a thread of its own puts work in, and waits."""

    def close(self) -> None:
        """Close each stream."""
        streams = (*self.compute, *self.communication, self.send, self.later)
        for stream in {id(stream): stream for stream in streams}.values():
            stream.close()
        self.current.close()
