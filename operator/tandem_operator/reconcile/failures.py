"""Remembers which services cannot be written or looked at, and whether it is worth a word; pure."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from tandem_operator.k8s.errors import KubeError, Transient
from tandem_operator.status.facts import Problem

Key = TypeVar("Key", bound=Hashable)

REPORT_AFTER: Final = 3
"""Times in a row after which also a trouble that may pass is worth a word."""


class FailureTracker(Generic[Key]):
    """The last trouble of each service that has some."""

    def __init__(self) -> None:
        self._last: dict[Key, tuple[KubeError, int]] = {}

    def record(self, key: Key, error: KubeError) -> None:
        """One more try has failed."""
        _, times = self._last.get(key, (error, 0))
        self._last[key] = error, times + 1

    def clear(self, key: Key) -> None:
        """A try has worked, or the service is gone."""
        self._last.pop(key, None)

    def reportable(self, key: Key) -> Problem | None:
        """The trouble that belongs into the status; None: there is none, or it may yet pass."""
        if key not in self._last:
            return None
        error, times = self._last[key]
        if isinstance(error, Transient) and times < REPORT_AFTER:
            return None
        return Problem(error.reason, str(error))
