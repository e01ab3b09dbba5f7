"""The exchange between dp ranks, which compute different rows with the same weights."""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.attention import Ints
from tandem_engine.device.host_memory import to_device
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import RankPlan
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.dp_batches import DPBatches, DPPart, merge_logits
from tandem_engine.runner.pending_logits import PendingLogits, results_of
from tandem_engine.runner.stage_collectives import DP
from tandem_engine.sampling.top_logits import num_columns

_RANK_0: Final = 0
"""Its place among the first ranks of all dp ranks."""


class DPExchange:
    """Takes the rows of a dp rank out of each step; the first rank of each gives rank 0 its logits.

    Args:
        batches: Of its dp rank.
        communicator: Of the rank, in the world of `stage_collectives.world_shape`.
        plan: Of the rank.
        vocab_size: Of the whole model.
    """

    def __init__(
        self, batches: DPBatches, communicator: Communicator, plan: RankPlan, *, vocab_size: int
    ) -> None:
        self._batches = batches
        self._communicator = communicator
        self._plan = plan
        self._vocab_size = vocab_size

    def copies(self, step: Step) -> Step:
        """Return the copies of `step` that are the dp rank's."""
        return self._batches.copies(step)

    def part(self, batch: FlatBatch) -> DPPart:
        """Return the rows of a step that are the dp rank's."""
        return self._batches.part(batch)

    def exchange(
        self, batch: FlatBatch, part: DPPart, own: PendingLogits
    ) -> Callable[[], Tensor] | None:
        """Return the work that hands over the logits of a part, or merges those of all on rank 0.

        Args:
            batch: The step.
            part: The dp rank's part of it.
            own: Logits of that part; without a meaning where it is empty.

        Returns:
            To be done behind the step; None: this rank has none.
        """
        plan = self._plan
        if plan.tp_rank or plan.pp_rank:
            return None
        if not plan.dp_rank:
            return partial(self._merged, batch, part, own)
        return partial(self._hand_over, part.batch, own) if part.gives(plan.dp_rank) else None

    def _hand_over(self, batch: FlatBatch, own: PendingLogits) -> Tensor:
        logits = own.result()
        for tensor in results_of(batch, logits):
            self._communicator.send(tensor, _RANK_0, DP)
        return logits

    def _merged(self, batch: FlatBatch, part: DPPart, own: PendingLogits) -> Tensor:
        """The logits of all dp ranks, and their scores, which rank 0 receives."""
        width = num_columns(
            batch.num_top, num_shares=self._plan.num_tp, vocab_size=self._vocab_size
        )
        parts = [(part.yields[_RANK_0], own.result())] if part.gives(_RANK_0) else []
        if part.batch.scoring is not None:
            _put_scores(batch, part.scored[_RANK_0], part.batch.scoring.scores)
        for dp_rank, at in enumerate(part.yields):
            if dp_rank and len(at):
                logits = torch.empty(len(at), width, device=part.batch.token_ids.device)
                self._communicator.receive(logits, dp_rank, DP)
                parts.append((at, logits))
            if dp_rank:
                self._receive_scores(batch, part, dp_rank)
        return merge_logits(parts, width)

    def _receive_scores(self, batch: FlatBatch, part: DPPart, dp_rank: int) -> None:
        if batch.scoring is None or not len(part.scored[dp_rank]):
            return
        scores = batch.scoring.scores.new_empty(
            len(part.scored[dp_rank]), batch.scoring.scores.shape[1]
        )
        self._communicator.receive(scores, dp_rank, DP)
        _put_scores(batch, part.scored[dp_rank], scores)


def _put_scores(batch: FlatBatch, at: Ints, scores: Tensor) -> None:
    if batch.scoring is not None:
        batch.scoring.scores[to_device(at, scores.device)] = scores
