"""One rank's part of each step, where dp ranks compute different rows with the same weights."""

from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.attention import Ints
from tandem_engine.device.host_memory import to_device
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import RankPlan
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.dp_batches import DPBatches, DPPart, merge_logits
from tandem_engine.runner.executor import PendingLogits
from tandem_engine.runner.recording import Recorder
from tandem_engine.runner.stage_collectives import DP
from tandem_engine.runner.stage_executor import NO_LOGITS, StageExecutor, results_of
from tandem_engine.sampling.top_logits import num_columns

_RANK_0: Final = 0
"""Its place among the first ranks of all dp ranks."""


class DPExecutor:
    """Computes the rows of its dp rank; the first rank of each hands the logits to rank 0.

    Implements `executor.RankExecutor`. Steps without a row of its dp rank are computed, too.

    Args:
        stages: Computes the rank's stages.
        batches: Of its dp rank.
        communicator: Of the rank, in the world of `stage_collectives.world_shape`.
        plan: Of the rank.
        vocab_size: Of the whole model.
    """

    def __init__(
        self,
        stages: StageExecutor,
        batches: DPBatches,
        communicator: Communicator,
        plan: RankPlan,
        *,
        vocab_size: int,
    ) -> None:
        self._stages = stages
        self._batches = batches
        self._communicator = communicator
        self._plan = plan
        self._vocab_size = vocab_size

    @property
    def recorder(self) -> Recorder:
        """Records the rows of the dp rank."""
        return self._stages.recorder

    def copy(self, step: Step) -> None:
        """Make the copies of `step` that are the dp rank's."""
        self._stages.copy(self._batches.copies(step))

    def set_prices(self, prices: CutPrices | None) -> None:
        """See `RankExecutor`: each dp rank cuts its own rows."""
        self._stages.set_prices(prices)

    def compute(self, batch: FlatBatch) -> PendingLogits:
        """See `RankExecutor`."""
        part = self._batches.part(batch)
        # A model whose ranks exchange nothing across dp has nothing to do without rows.
        own: PendingLogits = NO_LOGITS
        if part.is_empty:
            self.recorder.skip()
        else:
            own = self._stages.compute(part.batch)
        if self._plan.tp_rank or self._plan.pp_rank:
            return NO_LOGITS
        if self._plan.dp_rank:
            if part.gives(self._plan.dp_rank):
                self._stages.follow(lambda: self._hand_over(part.batch, own))
            return NO_LOGITS
        return self._stages.follow(lambda: self._merged(batch, part, own))

    def close(self) -> None:
        """End the threads; what they send and receive must come to an end by itself."""
        self._stages.close()

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
