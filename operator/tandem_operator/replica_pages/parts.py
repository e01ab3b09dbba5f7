"""The parts of a status that are made of the replicas' pages; pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandem_operator.k8s.objects import Object
from tandem_operator.micro_batches import document as micro_batches
from tandem_operator.micro_batches.figures import read_figures
from tandem_operator.micro_batches.switch import has_micro_batches
from tandem_operator.ranks import document as ranks
from tandem_operator.ranks.figures import read_rank_parts
from tandem_operator.replica_pages import device
from tandem_operator.speculation import document as speculation
from tandem_operator.speculation.figures import read_drafts
from tandem_operator.speculation.switch import has_speculation

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPages:
    """The pages of the replicas of one service, at one moment."""

    pages: Sequence[bytes]
    """Of those that were read."""
    num_ready: int
    """Replicas that answer."""
    now: str
    """This moment, as Kubernetes writes it."""

    def first(self, count: int) -> "ReplicaPages":
        """Return the same with so many pages at most."""
        return ReplicaPages(pages=self.pages[:count], num_ready=self.num_ready, now=self.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPart:
    """One field of a status."""

    name: str
    most_read: int
    """Replicas of one service that are read for it; those of more would tell the same."""
    belongs_to: Callable[[Object], bool]
    """True for services that are to have it."""
    read: Callable[[ReplicaPages], Document | None]
    """Makes it of the pages; None: they say nothing."""
    is_due: Callable[[Mapping[str, Any] | None, Document], bool]
    """True when the second is to be written in place of the first."""
    is_fixed: bool = False
    """True: what a replica says does not change, so one that is not read in time says it still."""

    def document(self, pages: ReplicaPages, before: Document | None) -> Document | None:
        """Return the field; None: it is taken away.

        Args:
            pages: Of the replicas that were read.
            before: The field so far.
        """
        kept = before if self.is_fixed and pages.num_ready else None
        return self.read(pages) or kept


def _micro_batches(read: ReplicaPages) -> Document:
    figures = [figures for figures in map(read_figures, read.pages) if figures is not None]
    return micro_batches.micro_batch_document(figures, read.num_ready, read.now)


def _speculation(read: ReplicaPages) -> Document:
    replicas = [drafts for drafts in map(read_drafts, read.pages) if drafts is not None]
    return speculation.speculation_document(replicas, read.num_ready, read.now)


def _ranks(read: ReplicaPages) -> Document | None:
    replicas = [parts for parts in map(read_rank_parts, read.pages) if parts is not None]
    return ranks.ranks_document(replicas, read.now)


def _device(read: ReplicaPages) -> Document | None:
    replicas = [facts for facts in map(device.read_device, read.pages) if facts is not None]
    return device.device_document(replicas, read.now)


PARTS: Final = (
    StatusPart(
        name="microBatch",
        most_read=16,
        belongs_to=has_micro_batches,
        read=_micro_batches,
        is_due=micro_batches.is_due,
    ),
    StatusPart(
        name="speculation",
        most_read=16,
        belongs_to=has_speculation,
        read=_speculation,
        is_due=speculation.is_due,
    ),
    StatusPart(
        name="ranks",
        most_read=2,
        belongs_to=lambda _: True,
        read=_ranks,
        is_due=ranks.is_due,
        is_fixed=True,
    ),
    StatusPart(
        name="device",
        most_read=2,
        belongs_to=lambda _: True,
        read=_device,
        is_due=device.is_due,
        is_fixed=True,
    ),
)
