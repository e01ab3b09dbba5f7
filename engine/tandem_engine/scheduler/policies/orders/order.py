"""What every order has in common."""

from typing import Protocol, runtime_checkable

from tandem_engine.scheduler.sequence import Sequence

Key = tuple[float, ...]


class Order(Protocol):
    """Says which of two sequences goes first; the last one of all loses its blocks first.

    A key may grow while its sequence is served, a bounded number of times, and never falls: two
    sequences therefore cannot take each other's blocks for ever.
    """

    ages: bool
    """Whether the oldest waiting request goes first once it has waited too long: an order by
    size could pass it over for ever."""

    def key(self, sequence: Sequence) -> Key:
        """The smaller goes first; no two sequences have the same."""


@runtime_checkable
class DeadlineOrder(Protocol):
    """An order under a promise that can be lost."""

    def latest_start(self, sequence: Sequence) -> float:
        """When a sequence goes behind all that can still keep theirs, in seconds; inf: never."""


def arrival(sequence: Sequence) -> Key:
    """First come, first served: how every order breaks its ties."""
    return (sequence.arrived, sequence.number)
