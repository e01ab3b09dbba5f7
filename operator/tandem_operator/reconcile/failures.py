"""Failures of reconciles by service, reported once they persist; pure."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from tandem_operator.k8s.errors import KubeError, Transient
from tandem_operator.status.facts import Problem

Key = TypeVar("Key", bound=Hashable)

REPORT_AFTER: Final = 3
"""Failures in a row after which a transient one is reported, too."""


class FailureTracker(Generic[Key]):
    """The last failure of each service whose reconcile fails."""

    def __init__(self) -> None:
        self._last: dict[Key, tuple[KubeError, int]] = {}

    def record(self, key: Key, error: KubeError) -> None:
        """Record a failure."""
        _, times = self._last.get(key, (error, 0))
        self._last[key] = error, times + 1

    def clear(self, key: Key) -> None:
        """Forget a service whose reconcile succeeded, or that is gone."""
        self._last.pop(key, None)

    def reportable(self, key: Key) -> Problem | None:
        """Return the failure for the status; None: there is none, or it may be transient."""
        if key not in self._last:
            return None
        error, times = self._last[key]
        if isinstance(error, Transient) and times < REPORT_AFTER:
            return None
        return Problem(error.reason, str(error))
