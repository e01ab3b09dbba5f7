"""A rank's last collectives, and what two ranks' records say about each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

RECORD_LENGTH: Final = 64
"""Calls of each group that a record keeps."""


class RecordedCall(NamedTuple):
    """One collective, as all members of its group must call it at the same number."""

    number: int
    """In its group, from 1."""
    group: str
    """Its name; of a pair of ranks `0→1`."""
    operation: str
    """all_reduce, reduce_scatter, all_gather, broadcast from …, send in …"""
    num_bytes: int
    dtype: str

    @property
    def contents(self) -> str:
        """What is called, on what."""
        return f"{self.operation}, {self.num_bytes} B of {self.dtype}"

    def __str__(self) -> str:
        return f"call {self.number} of group '{self.group}' ({self.contents})"


class RankCalls(NamedTuple):
    """The last calls of a rank."""

    rank: int
    calls: Sequence[RecordedCall]


def first_mismatch(
    own: Sequence[RecordedCall], peer: Sequence[RecordedCall]
) -> tuple[RecordedCall, RecordedCall] | None:
    """The first call of `own` that `peer` made otherwise at the same number of the same group."""
    by_number = _by_number(peer)
    return next(_mismatches(own, by_number), None)


def compare(own: RankCalls, peer: RankCalls) -> str:
    """Say in a sentence where two ranks' calls part, or how far each has come.

    Calls in groups that only one of the two is in say nothing about the other.
    """
    mismatch = first_mismatch(own.calls, peer.calls)
    if mismatch:
        mine, other = mismatch
        return (
            f"Rank {own.rank} made call {mine.number} of group '{mine.group}' as {mine.contents}; "
            f"rank {peer.rank} as {other.contents}."
        )
    if own.calls and own.calls[-1] in peer.calls:
        return f"Both ranks {own.rank} and {peer.rank} made {own.calls[-1]}; {_progress(peer)}."
    progress = f"{_progress(own)}; {_progress(peer)}."
    return progress[0].upper() + progress[1:]


def _by_number(calls: Sequence[RecordedCall]) -> Mapping[tuple[str, int], RecordedCall]:
    return {(call.group, call.number): call for call in calls}


def _mismatches(
    own: Sequence[RecordedCall], peer: Mapping[tuple[str, int], RecordedCall]
) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    for call in own:
        other = peer.get((call.group, call.number), call)
        if other != call:
            yield call, other


def _progress(rank: RankCalls) -> str:
    if not rank.calls:
        return f"rank {rank.rank} has made no call"
    return f"rank {rank.rank} made {rank.calls[-1]} last"
