"""Seconds by which a watch is behind LIST; pure.

A watch can die silently, and on a quiet cluster silence is right. So the proof of life is not an
event every few seconds — one of another stream, such as the lease's, would prove nothing of this
one — but that every change in the resync's LIST has come through the watch as well.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tandem_operator.k8s.objects import is_older, version_of


class _Missed(NamedTuple):
    version: str
    since: float


class WatchLag:
    """Versions that the watch of one kind has delivered. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._delivered: dict[str, str] = {}
        self._missed: dict[str, _Missed] = {}

    def deliver(self, item: Mapping[str, Any], *, is_gone: bool) -> None:
        """Record an object that the watch delivered, or its deletion."""
        uid, version = _identity(item)
        if is_gone:
            self._delivered.pop(uid, None)
            self._missed.pop(uid, None)
            return
        self._delivered[uid] = version
        if uid in self._missed and not is_older(version, self._missed[uid].version):
            del self._missed[uid]

    def compare(self, listed: Iterable[Mapping[str, Any]], now: float) -> None:
        """Compare with a LIST, which has all objects of the kind.

        A deletion that the watch missed does not count: kopf keeps none across a new LIST of its
        own, and the resync's LIST drops the object from the cache.
        """
        versions = dict(_identity(item) for item in listed)
        self._delivered = {
            uid: delivery for uid, delivery in self._delivered.items() if uid in versions
        }
        self._missed = {
            uid: self._missed.get(uid, _Missed(version, now))
            for uid, version in versions.items()
            if is_older(self._delivered.get(uid, ""), version)
        }

    def reset(self) -> None:
        """Forget everything: a watch that restarts delivers all objects again."""
        self._delivered.clear()
        self._missed.clear()

    def behind_s(self, now: float) -> float:
        """Seconds for which the oldest change in LIST has not been delivered."""
        return max((now - late.since for late in self._missed.values()), default=0.0)


def _identity(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["metadata"]["uid"], version_of(item)
