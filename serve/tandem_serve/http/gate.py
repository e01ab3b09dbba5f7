"""Counts the requests that are here and asks `admit` about new ones."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tandem_serve.admit import Admitted, Refused, admit, max_in_flight
from tandem_serve.http import errors

NUM_REMEMBERED: Final = 64
"""Completions that the rate is taken over."""


class Gate:
    """The places of one replica.

    What counts is what the engine counts: each prompt is one request, however many choices it
    has. A call to /v1/completions with a list of prompts takes one place for each, and gives
    them back together when it ends.
    """

    def __init__(self, max_link_num: int, monotonic_s: Callable[[], float]) -> None:
        self._max_link_num = max_link_num
        self._monotonic_s = monotonic_s
        self._ends_s: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._num_in_flight = 0
        self._num_refused = 0

    @property
    def num_in_flight(self) -> int:
        """Requests that hold a place now."""
        return self._num_in_flight

    @property
    def num_refused(self) -> int:
        """Requests that found no place, since the start."""
        return self._num_refused

    @contextmanager
    def places(self, num_new: int, param: str | None = None) -> Iterator[None]:
        """Hold places for `num_new` requests.

        Raises:
            ApiError: there is no place now (429), or there never will be so many (400).
        """
        self._refuse_what_never_fits(num_new, param)
        match self._ask(num_new):
            case Refused() as refused:
                self._num_refused += num_new
                raise errors.queue_full(refused)
            case Admitted():
                self._num_in_flight += num_new
        try:
            yield
        finally:
            self._num_in_flight -= num_new
            self._ends_s.extend([self._monotonic_s()] * num_new)

    def completions_per_s(self) -> float:
        """How fast requests have ended of late; 0 when that is not known."""
        if not self._ends_s:
            return 0.0
        span_s = self._monotonic_s() - self._ends_s[0]
        return len(self._ends_s) / span_s if span_s > 0.0 else 0.0

    def _ask(self, num_new: int) -> Admitted | Refused:
        return admit(
            num_in_flight=self._num_in_flight,
            max_link_num=self._max_link_num,
            num_new=num_new,
            completions_per_s=self.completions_per_s(),
        )

    def _refuse_what_never_fits(self, num_new: int, param: str | None) -> None:
        most = max_in_flight(self._max_link_num)
        if num_new > most:
            raise errors.ApiError(
                f"{param} holds {num_new} prompts; this server takes at most {most} at once. "
                "Send them in several requests.",
                param=param,
                code="invalid_value",
            )
