"""Errors of a replica's ranks.

EngineError
├── SegmentError      memory of another process cannot be attached
└── CollectiveError   a collective of the ranks cannot be completed; the replica ends
"""

from collections.abc import Callable, Sequence

from tandem_engine.api.errors import EngineError
from tandem_engine.parallel.collective_record import RankCalls, RecordedCall, compare


class SegmentError(EngineError):
    """Memory of another process cannot be attached."""


class CollectiveError(EngineError):
    """A collective of the ranks cannot be completed: no rank's tensors can be relied on any more.

    Every later call of every rank of the world raises it, too.

    Args:
        rank: The rank that is at fault: that has ended, is silent, or called something else.
        cause: A sentence.
        own: The last calls of the rank that raises this.
        peer: Those of `rank`.
    """

    def __init__(self, *, rank: int, cause: str, own: RankCalls, peer: RankCalls) -> None:
        self.rank = rank
        self.cause = cause
        self.own = own
        self.peer = peer
        super().__init__(_message(cause, own, peer))

    def __reduce__(
        self,
    ) -> tuple[Callable[[int, str, RankCalls, RankCalls], "CollectiveError"], tuple[object, ...]]:
        """Let it travel from one process to another."""
        return _remade, (self.rank, self.cause, self.own, self.peer)


def _remade(rank: int, cause: str, own: RankCalls, peer: RankCalls) -> CollectiveError:
    return CollectiveError(rank=rank, cause=cause, own=own, peer=peer)


def _message(cause: str, own: RankCalls, peer: RankCalls) -> str:
    comparison = compare(own, peer) if own.rank != peer.rank else _last_of(own.calls)
    return f"{cause} {comparison}" if comparison not in cause else cause


def _last_of(calls: Sequence[RecordedCall]) -> str:
    return f"Its last call is {calls[-1]}." if calls else "It has made no call."
