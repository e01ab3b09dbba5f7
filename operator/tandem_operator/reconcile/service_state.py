"""The state that reconciles of one service keep between them; pure. Moments are of one clock."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from tandem_operator.k8s.errors import KubeError, Transient
from tandem_operator.status.facts import Problem

REPORT_AFTER: Final = 3
"""Failures in a row after which a transient one is reported, too."""

WRITES: Final = 5
"""Size of the bucket: a new service takes two writes, and users repair objects by hand."""

REFILL_S: Final = 60.0
"""Seconds in which one write is refilled."""


@dataclass(slots=True)
class Failures:
    """Failures in a row, reported once they persist."""

    # Not the error itself: its traceback would keep everything that it saw.
    _last: Problem | None = None
    _is_transient: bool = False
    _count: int = 0

    def record(self, error: KubeError) -> None:
        """Record a failure."""
        self._last = Problem(error.reason, str(error))
        self._is_transient = isinstance(error, Transient)
        self._count += 1

    def clear(self) -> None:
        """Forget them: a reconcile succeeded."""
        self._last, self._count = None, 0

    def reportable(self) -> Problem | None:
        """Return the last one for the status; None: there is none, or it may be transient."""
        return None if self._is_transient and self._count < REPORT_AFTER else self._last


@dataclass(slots=True)
class WriteLimit:
    """Limits writes while another writer undoes them: a token bucket.

    Another controller, or a webhook, may change an object back. Two such writers would keep the API
    server busy for ever. So a service whose desired state stays the same has a bucket of a few
    writes, which refills slowly; a new desired state, another spec or number of replicas, fills it
    at once.
    """

    _state: Hashable = None
    _left: float = WRITES
    _counted_at: float = 0.0

    def take(self, state: Hashable, now: float) -> None:
        """Take one write for the desired state `state`."""
        self._left = self._left_for(state, now) - 1.0
        self._state, self._counted_at = state, now

    def wait_s(self, state: Hashable, now: float) -> float:
        """Seconds until the next write is allowed; 0: it is."""
        return max(0.0, (1.0 - self._left_for(state, now)) * REFILL_S)

    def _left_for(self, state: Hashable, now: float) -> float:
        if self._state != state:
            return WRITES
        return min(WRITES, self._left + (now - self._counted_at) / REFILL_S)


@dataclass(slots=True)
class ConfirmedToken:
    """The Secret of a token that is known to exist.

    The operator may create Secrets and not read them, so it confirms one by creating it: the API
    server refuses a second one of the same name. That is a request and no write, and done seldom.
    """

    _secret: str = ""
    _confirmed_at: float = 0.0

    def confirm(self, secret: str, now: float) -> None:
        """Record that the Secret of this name exists now."""
        self._secret, self._confirmed_at = secret, now

    def is_stale(self, secret: str, now: float, *, after_s: float) -> bool:
        """Return True when the Secret of this name may be missing: after so many seconds."""
        return self._secret != secret or now - self._confirmed_at > after_s


@dataclass(slots=True)
class ServiceState:
    """One service, as its reconciles have left it."""

    uid: str
    """Of the InferenceService at the last reconcile."""
    failures: Failures = field(default_factory=Failures)
    writes: WriteLimit = field(default_factory=WriteLimit)
    token: ConfirmedToken = field(default_factory=ConfirmedToken)
    is_polled: bool = False
    """True while it is not as desired: it is reconciled without an event, too."""
