"""Single replicas and sources of figures that a decision leaves out, by name; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """What is told beside a decision, though the decision does not follow it."""

    unseen: tuple[str, ...] = ()
    """A sentence for each replica whose figures are left out."""

    stalled: tuple[str, ...] = ()
    """Pods of replicas that compute no step though they have work."""

    lagging: tuple[str, ...] = ()
    """Pods of replicas whose queue is old while most have a young one."""

    overdue: tuple[str, ...] = ()
    """Replicas that have not answered for longer than a start takes."""

    strangers: tuple[str, ...] = ()
    """Pods that Prometheus has of the service, and that have never been of it."""

    warnings: tuple[str, ...] = ()
    """Warnings of Prometheus about its answer."""

    time_zones: tuple[str, ...] = ()
    """A sentence for each time zone of the schedule that is not known."""

    @property
    def lost(self) -> str:
        """The replicas that carry nothing, as a sentence; empty: there are none."""
        return "; ".join(self._lost())

    @property
    def text(self) -> str:
        """All remarks as a sentence without its full stop; empty: there are none."""
        return "; ".join((*self._lost(), *self._left_out(), *self._schedule()))

    @property
    def left_out(self) -> str:
        """What may be missing from the figures, as a sentence; empty: nothing."""
        return "; ".join(self._left_out())

    @property
    def schedule(self) -> str:
        """The minimums that do not hold, as a sentence; empty: all do."""
        return "; ".join(self._schedule())

    def _lost(self) -> Iterator[str]:
        if self.overdue:
            text = _counted(self.overdue, "has", "have")
            yield f"{text} not answered for longer than a start takes"
        if self.stalled:
            text = _counted(self.stalled, "computes", "compute")
            yield f"{text} no step though requests wait there"

    def _left_out(self) -> Iterator[str]:
        if self.lagging:
            yield f"the queue of {_names(self.lagging)} is old, that of most replicas is not"
        if self.unseen:
            more = f", and {len(self.unseen) - 1} more are unseen" if len(self.unseen) > 1 else ""
            yield f"one replica is left out: {self.unseen[0]}{more}"
        if self.strangers:
            yield (
                f"Prometheus has {_names(self.strangers, 'pod')} of a service with the same "
                "namespace and name, such as another cluster's, whose latencies count: set the "
                "operator's autoscaling.prometheus.matchers"
            )
        if self.warnings:
            yield f"Prometheus warns that its answer may be incomplete: {self.warnings[0]}"

    def _schedule(self) -> Iterator[str]:
        for text in self.time_zones:
            yield f"a minimum of spec.scaling.schedule does not hold: {text}"


NO_REMARKS: Final = Remarks()


def _counted(pods: Sequence[str], singular: str, plural: str) -> str:
    return f"{_names(pods)} {singular if len(pods) == 1 else plural}"


def _names(pods: Sequence[str], kind: str = "replica") -> str:
    """Return the first name, and how many there are beside."""
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"{kind} {pods[0]}{more}"
