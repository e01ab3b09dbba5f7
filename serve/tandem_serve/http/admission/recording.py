"""Admits one recording of steps at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from tandem_serve.http import errors


class RecordingSlot:
    """The one recording that a replica does at a time.

    The engine would let a second one wait for the first one's end; any number of callers could
    keep it recording.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._ends_s: float | None = None

    @contextmanager
    def held(self, within_s: float) -> Iterator[None]:
        """Hold the slot for a recording that takes `within_s` seconds at most.

        Raises:
            ApiError: another recording holds it (429).
        """
        if self._ends_s is not None:
            left_s = self._ends_s - self._monotonic_s()
            raise errors.recording_busy(max(1, ceil(left_s)))
        self._ends_s = self._monotonic_s() + within_s
        try:
            yield
        finally:
            self._ends_s = None
