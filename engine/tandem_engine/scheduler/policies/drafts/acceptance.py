"""The share of drafts that are right, by sequence and method."""

from collections.abc import Iterable
from typing import Final

from tandem_engine.api.drafts import DraftMethod

_FADE: Final = 0.8
_FADE_OF_ALL: Final = 0.99
FIRST_SHARE: Final = 0.6
"""Share of drafts that is taken to be right before any was checked."""
_PULL: Final = 2.0
"""Drafts that the mean of all sequences counts for in that of one."""


class Acceptance:
    """Learns which share of the drafts is right, up to the first wrong one.

    A sequence of which nothing is known yet is taken to be like all others.
    """

    def __init__(self) -> None:
        self._of_all: dict[DraftMethod, _Rate] = {}
        self._of_one: dict[tuple[DraftMethod, str], _Rate] = {}

    def share(self, method: DraftMethod, sequence_id: str) -> float:
        """Return the share, 0 … 1, that is expected of the next draft of a sequence."""
        of_all = self._of_all.get(method)
        mean = FIRST_SHARE if of_all is None else of_all.pulled_to(FIRST_SHARE)
        of_one = self._of_one.get((method, sequence_id))
        return mean if of_one is None else of_one.pulled_to(mean)

    def expected(self, method: DraftMethod, sequence_id: str, count: int) -> float:
        """Return how many of `count` drafts are expected to be right."""
        share, total, each = self.share(method, sequence_id), 0.0, 1.0
        for _ in range(count):
            each *= share
            total += each
        return total

    def add(self, method: DraftMethod, sequence_id: str, drafted: int, accepted: int) -> None:
        """Learn what became of the drafts of a sequence in a step."""
        of_one = self._of_one.setdefault((method, sequence_id), _Rate())
        of_one.add(drafted, accepted, _FADE)
        if method not in self._of_all:
            self._of_all[method] = _Rate(_PULL * FIRST_SHARE, _PULL)
        self._of_all[method].add(drafted, accepted, _FADE_OF_ALL)

    def forget(self, sequence_ids: Iterable[str]) -> None:
        """Forget sequences that have ended; unknown ones are ignored."""
        for sequence_id in sequence_ids:
            self._of_one.pop(("ngram", sequence_id), None)
            self._of_one.pop(("draft", sequence_id), None)


class _Rate:
    """The share of drafts that were right, up to the first wrong one."""

    __slots__ = ("_checked", "_right")

    def __init__(self, right: float = 0.0, checked: float = 0.0) -> None:
        self._right, self._checked = right, checked

    def add(self, drafted: int, accepted: int, fade: float) -> None:
        self._right = fade * self._right + accepted
        # Those behind the first wrong one say nothing.
        self._checked = fade * self._checked + min(accepted + 1, drafted)

    def pulled_to(self, mean: float) -> float:
        return (self._right + _PULL * mean) / (self._checked + _PULL)
