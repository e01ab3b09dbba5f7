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
        # Not the errors themselves: their tracebacks would keep everything that they saw.
        self._last: dict[Key, tuple[Problem, bool, int]] = {}

    def record(self, key: Key, error: KubeError) -> None:
        """Record a failure."""
        times = self._last[key][2] if key in self._last else 0
        problem = Problem(error.reason, str(error))
        self._last[key] = problem, isinstance(error, Transient), times + 1

    def clear(self, key: Key) -> None:
        """Forget a service whose reconcile succeeded, or that is gone."""
        self._last.pop(key, None)

    def reportable(self, key: Key) -> Problem | None:
        """Return the failure for the status; None: there is none, or it may be transient."""
        if key not in self._last:
            return None
        problem, is_transient, times = self._last[key]
        return None if is_transient and times < REPORT_AFTER else problem
