"""Time limit of a call: the service's e2eTimeout, or less where the caller says so.

The header is not Ray Serve's `x-request-timeout-seconds`: that one Ray carries out itself, by
cutting a stream in the middle and answering other calls with plain text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from tandem_engine.api.errors import DeadlineExceeded
from tandem_serve.http.errors import ApiError, truncate
from tandem_serve.http.settings import MAX_TIMEOUT_S
from tandem_serve.http.state import state_of

TIMEOUT_HEADER: Final = "X-Request-Timeout"
"""Seconds that the caller waits for the end of the answer."""

_SECONDS: Final = re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Deadline of one call."""

    timeout_s: float
    at_s: float
    """On the clock of `monotonic_s`."""
    monotonic_s: Callable[[], float]

    @classmethod
    def of(cls, request: Request) -> "Deadline":
        """The deadline of a call that begins now.

        Raises:
            ApiError: the caller's own is not a number of seconds in range.
        """
        http = state_of(request)
        timeout_s = http.settings.e2e_timeout_s
        given = request.headers.getlist(TIMEOUT_HEADER)
        if given:
            timeout_s = min(timeout_s, _seconds(", ".join(given)))
        now = http.dependencies.monotonic_s()
        return cls(timeout_s, now + timeout_s, http.dependencies.monotonic_s)

    def left_s(self) -> float:
        """Seconds left, more than 0.

        Raises:
            DeadlineExceeded: none are left.
        """
        left_s = self.at_s - self.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceeded(
                f"The request exceeded its deadline of {self.timeout_s:g} s before its prompt "
                "reached the engine. Allow more time, or send less at once."
            )
        return left_s


def _seconds(text: str) -> float:
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise ApiError(
            f"{TIMEOUT_HEADER} is '{truncate(text)}'; it must be a number of seconds, such as 30 "
            f"or 0.5, above 0 and at most {MAX_TIMEOUT_S}.",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return seconds
