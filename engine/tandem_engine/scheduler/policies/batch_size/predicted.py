"""Batch size by prediction: the sequences that decode within the TPOT target and have blocks."""

from math import inf

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.batch_size.batch_size_policy import BatchSizeView
from tandem_engine.scheduler.step_rows import BatchLimits


class PredictedBatchSize:
    """maxBatchSize from the model of step times, where MindIE searches for it by trial.

    It is the largest number of rows, each with the mean context, whose decode-only step is
    predicted to keep the TPOT (with the model's margin), and whose blocks fit the pool (as MindIE's
    manual advises: blocks in all by blocks a request). It falls at once and grows only while
    requests wait: a batch that no request waits to join says nothing about a larger one. Sequences
    that run are never too many: to leave some out of a step would make them later, not faster.
    """

    def __init__(self, tpot_s: float, model: StepTimeModel) -> None:
        """Keep `tpot_s`, in seconds a token, by the predictions of `model`."""
        self._tpot_s = tpot_s
        self._model = model
        self._size: int | None = None

    def limits(self, view: BatchSizeView, schedule: ScheduleConfig) -> BatchLimits:
        """The limits of the next step; prefills keep the configured one within the batch."""
        fitting = min(self._rows_in_time(view), _rows_in_memory(view), schedule.max_batch_size)
        rows = max(int(fitting), 1)
        if self._size is None or rows < self._size or view.num_waiting:
            self._size = rows
        size = min(max(self._size, view.num_running), schedule.max_batch_size)
        return BatchLimits(size, min(schedule.prefill_rows, size))

    def observe_decode(self, latency_s: float, batch_size: int) -> None:
        """Ignore the step: the model learns elsewhere, from all steps."""

    def _rows_in_time(self, view: BatchSizeView) -> float:
        prices, knee = self._model.coefficients, self._model.knee
        left_s = self._tpot_s / self._model.margin(has_chunks=False) - prices.base
        own_s = prices.row + prices.decode_context * view.mean_context
        # Above the knee every row's token counts, below it the knee does; the larger cost holds.
        return min(
            _fitting(left_s, own_s + prices.token * view.tokens_per_row),
            _fitting(left_s - prices.token * knee, own_s),
        )


def _fitting(left_s: float, row_s: float) -> float:
    if left_s <= 0.0:
        return 0.0
    return left_s / row_s if row_s > 0.0 else inf


def _rows_in_memory(view: BatchSizeView) -> float:
    return view.num_blocks / view.blocks_per_row if view.blocks_per_row > 0.0 else inf
