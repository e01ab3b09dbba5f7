"""The bodies of requests that are in flight: the memory that they may take, and the time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from tandem_serve.http import errors
from tandem_serve.http.admission.policy import admit_bytes

BYTES_PER_EXTRA_S: Final = 2**20
"""Bytes that give their body one more second."""


class BodyBudget:
    """All bodies of one replica, from their first byte until the engine has their requests.

    Ray Serve and uvicorn accept any number of connections; without this, large bodies would take
    the memory, and slow ones the slots.
    """

    def __init__(
        self, *, max_bytes: int, max_readers: int, timeout_s: float, least_timeout_s: float
    ) -> None:
        """Make an empty budget.

        Args:
            max_bytes: bytes of all bodies together.
            max_readers: bodies that have the whole time limit; one more shortens the oldest.
            timeout_s: seconds in which a body must come, beside a second for each MiB of it.
            least_timeout_s: the same where more than max_readers come at once.
        """
        self._max_bytes = max_bytes
        self._max_readers = max_readers
        self._timeout_s = timeout_s
        self._least_timeout_s = least_timeout_s
        self._num_held = 0
        self._timers: dict[BodyTimer, None] = {}  # A set in the order of arrival.

    @property
    def num_held(self) -> int:
        """Bytes held now."""
        return self._num_held

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        """Memory of one body, released at the end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            share.release()

    @asynccontextmanager
    async def timer(self) -> AsyncIterator["BodyTimer"]:
        """Time limit of one body, shortened when too many others come.

        Raises:
            ApiError: the body came too slowly (408).
        """
        try:
            async with asyncio.timeout(self._timeout_s) as clock:
                timer = BodyTimer(clock, reduction_s=self._timeout_s - self._least_timeout_s)
                self._timers[timer] = None
                self._shorten_oldest()
                try:
                    yield timer
                finally:
                    self._timers.pop(timer, None)
        except TimeoutError as late:
            raise errors.body_too_slow(self._timeout_s) from late

    def take(self, num_more: int, num_body: int) -> None:
        """Hold `num_more` bytes for a body of `num_body`.

        Raises:
            ApiError: the budget is exhausted (503).
        """
        self.check(num_more, num_body)
        self._num_held += num_more

    def give(self, num_bytes: int) -> None:
        """Hold `num_bytes` no longer."""
        self._num_held -= num_bytes

    def check(self, num_more: int, num_body: int) -> None:
        """Raise ApiError (503) when the budget cannot hold `num_more` bytes."""
        if not admit_bytes(
            num_held=self._num_held,
            num_more=num_more,
            num_body=num_body,
            budget=self._max_bytes,
        ):
            raise errors.bodies_full(self._num_held, self._max_bytes)

    def _shorten_oldest(self) -> None:
        """Shorten the time of the oldest body when there are too many.

        A client that sends at all is done in a moment, so the oldest body is the slowest.
        """
        if len(self._timers) > self._max_readers:
            oldest = next(iter(self._timers))
            del self._timers[oldest]
            oldest.shorten()


class BodyShare:
    """Share of one body in the budget."""

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self.num_held = 0

    def announce(self, num_bytes: int) -> None:
        """Raise ApiError (503) when the budget cannot hold `num_bytes`; nothing is held for it."""
        self._bodies.check(num_bytes, num_bytes)

    def grow(self, num_more: int) -> None:
        """Hold `num_more` bytes.

        Raises:
            ApiError: the budget is exhausted (503).
        """
        self._bodies.take(num_more, self.num_held + num_more)
        self.num_held += num_more

    def release(self) -> None:
        """Return all of it to the budget."""
        self._bodies.give(self.num_held)
        self.num_held = 0


class BodyTimer:
    """Time limit of one body."""

    def __init__(self, clock: asyncio.Timeout, *, reduction_s: float) -> None:
        self._clock = clock
        self._reduction_s = reduction_s

    def extend(self, num_bytes: int) -> None:
        """Extend the limit by the time of `num_bytes` that have come."""
        self._give(num_bytes / BYTES_PER_EXTRA_S)

    def shorten(self) -> None:
        """Reduce the limit to that of a crowded server."""
        self._give(-self._reduction_s)

    def _give(self, more_s: float) -> None:
        when = self._clock.when()
        if when is not None and not self._clock.expired():
            self._clock.reschedule(when + more_s)
