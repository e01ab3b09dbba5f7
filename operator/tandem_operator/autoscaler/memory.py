"""What the loop remembers of one service between two decisions; the rest is in its status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tandem_operator.autoscaler.agreement import Doubt
from tandem_operator.autoscaler.document import Document, kept_history
from tandem_operator.autoscaler.exposition import Reading
from tandem_operator.autoscaler.replicas import ReplicaPod
from tandem_operator.scaling_law.history import History
from tandem_serve.api.spec import InferenceService

_MAX_PERIODS: Final = 16
"""Periods between two attempts to read replicas that cannot be read. Each attempt takes the time
limit of a reading, and a network that drops packets would hold up the steps of all services."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """The past of one service."""

    uid: str
    history: History
    decisions: list[Document]
    """As the status shows them."""

    is_recalled: bool = False
    """True once Prometheus was asked for the loads of the time before this process."""

    measured: set[str] = field(default_factory=set)
    """Pods whose cold start is known, by uid."""

    parsed: tuple[int, InferenceService | None] | None = None
    """The spec of a generation; None: it is invalid."""

    readings: dict[str, Reading] = field(default_factory=dict)
    """The last reading of each replica's own metrics, by uid of its pod."""

    last_read: str | None = None
    """The replica that was read last."""

    doubts: dict[str, Doubt | None] = field(default_factory=dict)
    """The result of each replica's last reading, by uid of its pod; None: it agrees."""

    short_since: float | None = None
    """The moment from which on there have been fewer pods than replicas; None: there are enough."""

    known_pods: set[str] = field(default_factory=set)
    """Names of its pods, also of those that have ended and that Prometheus still has."""

    conflicts: int = 0
    """Decisions that lost to another write, one after the other."""

    unreadable: int = 0
    """Readings that failed, one after the other."""

    left_out: int = 0
    """Periods in which no replica is to be read."""

    @classmethod
    def of(cls, isvc: Mapping[str, Any], pods: Iterable[ReplicaPod], max_gap_s: float) -> Self:
        """Return what the status of `isvc` and its pods still tell."""
        status = isvc.get("status") or {}
        scaling = status.get("scaling") or {}
        ready = {pod.uid: pod.ready_at for pod in pods if pod.ready_at is not None}
        settled_at = max(ready.values(), default=None)
        # A pod that was ready, was not, and is again looks like one that started slowly.
        is_known = "coldStartSeconds" in scaling
        return cls(
            uid=isvc["metadata"]["uid"],
            history=kept_history(status, settled_at=settled_at, max_gap_s=max_gap_s),
            decisions=list(scaling.get("decisions") or ()),
            measured=set(ready) if is_known else set(),
        )

    def note_reading(self, pod: ReplicaPod, reading: Reading | None) -> None:
        """Keep what a replica has shown; None: it cannot be read, so the next attempt is later."""
        if reading is None:
            self.unreadable += 1
            self.left_out = min(2**self.unreadable, _MAX_PERIODS) - 1
            return
        self.unreadable = 0
        self.readings[pod.uid] = reading

    def count_pods(self, pods: int, replicas: int, now: float) -> None:
        """Keep the moment from which on pods are missing."""
        is_short = pods < replicas
        self.short_since = (self.short_since or now) if is_short else None

    def strangers(self, pods: Iterable[str], scraped: Iterable[str]) -> list[str]:
        """Return the scraped pods that are not of this service, and have not been."""
        there, shown = {*pods}, {*scraped}
        self.known_pods = there | (self.known_pods & shown)
        return sorted(shown - self.known_pods)

    def measure_cold_starts(self, pods: Iterable[ReplicaPod]) -> None:
        """Add the cold starts of replicas that have begun to answer."""
        there = {pod.uid: pod for pod in pods}
        for uid, pod in there.items():
            if pod.cold_start_s is not None and uid not in self.measured:
                self.measured.add(uid)
                self.history = self.history.with_cold_start(pod.cold_start_s)
        self.measured &= set(there)
        for known in (self.readings, self.doubts):
            for uid in set(known) - set(there):
                del known[uid]
