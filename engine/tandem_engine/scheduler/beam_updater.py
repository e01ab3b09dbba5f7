"""The moves of a request's beams, with their sequences and KV blocks."""

from collections.abc import Callable, Mapping

from tandem_engine.api.output import FinishReason
from tandem_engine.api.step import Advance, BeamMove, StepResult
from tandem_engine.scheduler.beam_search import Hypothesis
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import Sequence, SequenceGroup


class BeamUpdater:
    """Carries out beam searches.

    Args:
        queues: The queues of the beams.
        blocks: Their KV blocks.
        commit_token: Takes over the newest token of a beam (`StepUpdater.commit_token`). It ends
            none: the search leaves no live beam with a stop token or at its longest.
    """

    def __init__(
        self,
        queues: Queues,
        blocks: KVBlocks,
        commit_token: Callable[[Sequence, int], FinishReason | None],
    ) -> None:
        self._queues = queues
        self._blocks = blocks
        self._commit_token = commit_token

    def advance(self, sequence: Sequence, result: StepResult) -> list[Advance]:
        """Take the candidates of one beam; once all are there, move.

        Returns:
            The best sequences of the search when it is over; nothing before.
        """
        group = sequence.group
        candidates = result.candidates.get(sequence.sequence_id)
        if candidates is None or group.search is None:
            return []
        group.candidates = {**group.candidates, sequence.sequence_id: tuple(candidates)}
        beams = group.beams or {sequence.sequence_id: sequence}
        if len(group.candidates) < len(beams):
            return []
        moved = group.search.advance(group.candidates)
        group.candidates = {}
        if group.search.is_done:
            best = group.search.best()
            self.end(group)
            return [
                _advance(sequence_id, hypothesis)
                for sequence_id, hypothesis in zip(group.request.sequences, best, strict=False)
            ]
        self._move(group, beams, moved.moves)
        return []

    def end(self, group: SequenceGroup) -> None:
        """Forget a request with all of its beams."""
        for sequence_id in group.request.sequences:
            sequence = self._queues.find(sequence_id)
            if sequence is None:
                continue
            if sequence.sequence_id == sequence_id:
                self._queues.end(sequence)
                self._blocks.drop(sequence)
            else:
                self._queues.forget(sequence_id)
        self._queues.num_beam_groups -= bool(group.beams)
        group.beams, group.pending_forks = {}, ()
        if group.is_admitted:
            self._blocks.leave(group)

    def _move(
        self, group: SequenceGroup, beams: Mapping[str, Sequence], moves: Mapping[str, BeamMove]
    ) -> None:
        """Give each beam the tokens and blocks of its parent."""
        children = {}
        for sequence_id, move in moves.items():
            child = self._blocks.fork(beams[move.parent], sequence_id)
            child.count_token()
            self._commit_token(child, move.token_id)
            child.num_preempted = beams[move.parent].num_preempted
            children[sequence_id] = child
        for old in beams.values():
            self._queues.replace(old)
            self._blocks.drop(old)
        for sequence_id in group.request.sequences:
            if sequence_id in children:
                self._queues.join(children[sequence_id])
            elif self._queues.find(sequence_id) is not None:
                # A search may have fewer beams left than it began with.
                self._queues.forget(sequence_id)
        self._queues.num_beam_groups += not group.beams
        group.beams, group.pending_forks, group.moves = children, (), moves


def _advance(sequence_id: str, hypothesis: Hypothesis) -> Advance:
    return Advance(sequence_id, hypothesis.tokens, hypothesis.finish_reason)
