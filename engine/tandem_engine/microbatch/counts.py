"""Counts of cut and whole steps on rank 0, and the overlap of the last hour; pure."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from tandem_engine.api.micro_batch_stats import GateState, MicroBatchStats, Phase
from tandem_engine.microbatch.cut import RefusalReason
from tandem_engine.microbatch.overlap import StepOverlap

_MINUTE_S: Final = 60.0
_MINUTES: Final = 60


class _Minute:
    """Hidden and hideable seconds of the steps of one minute."""

    __slots__ = ("hidden_s", "hideable_s", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.hidden_s = self.hideable_s = 0.0


class MicroBatchCounts:
    """Counts steps; one thread counts, any may ask."""

    def __init__(self) -> None:
        self._refusals = dict.fromkeys(map(str, RefusalReason), 0)
        self._num_splits = 0
        self._hidden_s = self._exposed_s = 0.0
        self._minutes: deque[_Minute] = deque(maxlen=_MINUTES + 1)

    def whole(self, reason: RefusalReason, measured: StepOverlap) -> None:
        """Count a step that was not cut."""
        self._refusals[reason] += 1
        self._exposed_s += measured.communication_s

    def cut(self, measured: StepOverlap, now: float) -> None:
        """Count a step that was cut and ended at `now`, in seconds."""
        self._num_splits += 1
        self._hidden_s += measured.hidden_s
        self._exposed_s += measured.communication_s - measured.hidden_s
        number = int(now // _MINUTE_S)
        if not self._minutes or self._minutes[-1].number != number:
            self._minutes.append(_Minute(number))
        minute = self._minutes[-1]
        minute.hidden_s += measured.hidden_s
        minute.hideable_s += measured.hideable_s

    def overlap(self, now: float) -> float | None:
        """Return the overlap of the steps that were cut within the last hour; None: of none."""
        first = int(now // _MINUTE_S) - _MINUTES
        # A copy is one operation: the thread that counts cannot get in between.
        recent = [minute for minute in self._minutes.copy() if minute.number > first]
        hideable_s = sum(minute.hideable_s for minute in recent)
        return sum(minute.hidden_s for minute in recent) / hideable_s if hideable_s > 0.0 else None

    def stats(
        self, now: float, *, gates: Mapping[Phase, GateState], num_kv_blocks: int
    ) -> MicroBatchStats:
        """Return all figures.

        Args:
            now: Seconds, of the clock of `cut`.
            gates: State of each gate.
            num_kv_blocks: KV blocks that micro-batches cost.
        """
        return MicroBatchStats(
            num_splits=self._num_splits,
            refusals=self._refusals.copy(),
            hidden_s=self._hidden_s,
            exposed_s=self._exposed_s,
            overlap=self.overlap(now),
            gates=gates,
            num_kv_blocks=num_kv_blocks,
        )
