"""dynamicBatchSizeEnable: MindIE's bisection towards decodeExpectedTime."""

from collections import deque
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.policies.batch_size.batch_size_policy import BatchSizeView
from tandem_engine.scheduler.step_rows import BatchLimits

WINDOW: Final = 20_000
"""Decode steps that the mean latency and the mean batch size are taken over."""

_FILLED: Final = 0.1
"""Share of the window below which there is no mean."""
_FLOOR: Final = 3
_DEAD_BAND_MS: Final = 5.0
_STRIDE: Final = 2
_REACH_UP: Final = 3
_REACH_DOWN: Final = 2
_MILLISECONDS: Final = 1e3


class BisectedBatchSize:
    """Batch sizes that follow the measured decode latency.

    The configured values hold until a tenth of the window is filled. Then maxBatchSize starts from
    3, and steps alternate: in even ones two bounds close in on the batch size that meets
    decodeExpectedTime, with a dead band of 5 ms; in odd ones prefills are frozen for one step when
    decodes are too slow.

    Where MindIE's manual leaves it open, the reading is ours: one sample is one decode step; the
    mean batch size is cut to a whole number; a freeze moves the present maxBatchSize, from which
    the next even step goes on; a step with nothing running is not frozen, since nothing would
    ever move again; maxPrefillBatchSize stays within the configured one.
    """

    def __init__(self, window: int = WINDOW) -> None:
        """Start with an empty window.

        Args:
            window: Decode steps to take the means over.
        """
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()
        self._total_s = 0.0
        self._total_rows = 0
        self._num_steps = 0
        self._lower = self._upper = 0
        self._limits: BatchLimits | None = None

    def observe_decode(self, latency_s: float, batch_size: int) -> None:
        """Take the latency and the size of one decode step into the window."""
        self._samples.append((latency_s, batch_size))
        self._total_s += latency_s
        self._total_rows += batch_size
        if len(self._samples) > self._window:
            oldest_s, oldest_rows = self._samples.popleft()
            self._total_s -= oldest_s
            self._total_rows -= oldest_rows

    def limits(self, view: BatchSizeView, schedule: ScheduleConfig) -> BatchLimits:
        """Return the limits of one step."""
        if len(self._samples) < max(1, _FILLED * self._window):
            return BatchLimits(schedule.max_batch_size, schedule.prefill_rows)
        latency_ms = self._total_s / len(self._samples) * _MILLISECONDS
        excess_ms = latency_ms - schedule.decode_expected_time
        if self._limits is None:
            self._lower, self._upper = _floor(schedule), schedule.max_batch_size
            self._limits = BatchLimits(self._lower, 0)
        is_even = self._num_steps % 2 == 0
        self._num_steps += 1
        if is_even:
            self._limits = self._bisected(self._limits, excess_ms, view, schedule)
        elif excess_ms > _DEAD_BAND_MS and view.num_running:
            self._limits = BatchLimits(view.num_running, 0)
        return self._limits

    def _bisected(
        self,
        present: BatchLimits,
        excess_ms: float,
        view: BatchSizeView,
        schedule: ScheduleConfig,
    ) -> BatchLimits:
        self._move_bounds(excess_ms, schedule)
        middle = (self._upper + self._lower) // 2
        least, most = present.max_batch_size - _STRIDE, present.max_batch_size + _STRIDE
        size = max(min(max(middle, least), most), view.num_running, _floor(schedule))
        size = min(size, schedule.max_batch_size)
        free_rows = max(0, size - view.num_running)
        return BatchLimits(size, min(free_rows, schedule.prefill_rows))

    def _move_bounds(self, excess_ms: float, schedule: ScheduleConfig) -> None:
        """Take the mean batch size as the new bound on the side that the latency speaks for."""
        mean_rows = self._total_rows // len(self._samples)
        floor, lower, upper = _floor(schedule), self._lower, self._upper
        if excess_ms > _DEAD_BAND_MS:
            upper = max(mean_rows, lower + _REACH_UP)
            lower -= _REACH_DOWN
        elif excess_ms < -_DEAD_BAND_MS:
            lower = min(mean_rows, upper - _REACH_UP)
            upper += _REACH_DOWN
        else:
            upper, lower = mean_rows + _REACH_UP, mean_rows - _REACH_DOWN
        self._lower = max(lower, floor)
        self._upper = min(upper, schedule.max_batch_size)


def _floor(schedule: ScheduleConfig) -> int:
    return min(_FLOOR, schedule.max_batch_size)
