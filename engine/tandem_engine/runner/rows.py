"""The sequences of a runner: how they are added, fork, move and are removed."""

from collections.abc import Mapping

from tandem_engine.api.request import Request
from tandem_engine.api.step import BeamMove
from tandem_engine.sampling.row import Row, row_of


class Rows:
    """The rows, by sequence id: `by_id`.

    A request begins with one row, that of its first sequence. Its other choices are made by
    `fork`, once the prompt is computed; its other beams by the first `move` that names them.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Row] = {}
        self._pending_forks: set[str] = set()
        # Beams that were dropped while others of their request live: one that goes on may have
        # taken over their tokens, and is told so only when it is in a step again.
        self._dropped: dict[str, Row] = {}

    def add(self, request: Request) -> None:
        """Add the first sequence of `request`, and expect the other choices."""
        row = row_of(request)
        self.by_id[row.sequence_id] = row
        if not request.sampling.use_beam_search:
            self._pending_forks.update(request.sequences[1:])

    def remove(self, sequence_id: str) -> None:
        """Forget a sequence; unknown ids are ignored.

        A choice that does not exist yet is never made, and without the first one none is.
        """
        self._pending_forks.discard(sequence_id)
        row = self.by_id.pop(sequence_id, None)
        if row is None:
            return
        if row.sampling.use_beam_search:
            self._drop(row)
        elif self._pending_forks:
            self._pending_forks.difference_update(row.request.sequences)

    def fork(self, row: Row) -> list[Row]:
        """The request's other choices, made once, when `row` has computed the prompt."""
        if row.output or not self._pending_forks or row.sampling.use_beam_search:
            return []
        others = [
            row_of(row.request, index)
            for index, sequence_id in enumerate(row.request.sequences)
            if sequence_id in self._pending_forks
        ]
        for other in others:
            other.num_scored = row.num_scored
            self._pending_forks.discard(other.sequence_id)
            self.by_id[other.sequence_id] = other
        return others

    def move(self, moves: Mapping[str, BeamMove]) -> None:
        """Apply the moves of beams, all at once.

        Raises:
            KeyError: a parent is unknown, which is a bug of the scheduler.
        """
        # Two loops, because a beam that moves may be the parent of another.
        parents = [self.by_id.get(m.parent) or self._dropped[m.parent] for m in moves.values()]
        for (sequence_id, move), parent in zip(moves.items(), parents, strict=True):
            self.by_id[sequence_id] = parent.become(sequence_id, move.token_id)

    def _drop(self, row: Row) -> None:
        beams = row.request.sequences
        self._dropped[row.sequence_id] = row
        if not any(beam in self.by_id for beam in beams):
            for beam in beams:
                self._dropped.pop(beam, None)
