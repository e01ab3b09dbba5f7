"""The interface of all orders."""

from typing import Protocol, runtime_checkable

from tandem_engine.scheduler.sequence import Sequence

Key = tuple[float, ...]


class Order(Protocol):
    """Sorts sequences by a key; the last one of all loses its blocks first.

    A key may grow while its sequence is served, a bounded number of times, and never falls: two
    sequences therefore cannot take each other's blocks for ever.
    """

    ages: bool
    """True if the oldest waiting request goes first once it has waited too long: an order by
    size could skip it for ever."""

    def key(self, sequence: Sequence) -> Key:
        """Return its key: the smaller goes first; no two sequences have the same."""


@runtime_checkable
class DeadlineOrder(Protocol):
    """An order under a target that can be missed."""

    def latest_start(self, sequence: Sequence) -> float:
        """Return when a sequence goes behind all that can be in time, in seconds; inf: never."""


def arrival(sequence: Sequence) -> Key:
    """Return the key of first come, first served, which breaks the ties of every order."""
    return (sequence.arrived, sequence.number)
