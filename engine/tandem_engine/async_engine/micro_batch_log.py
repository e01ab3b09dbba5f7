"""Lines of the log on micro-batches: gates that have turned, and what an hour has brought."""

import logging
from collections.abc import Callable
from typing import Final

from tandem_engine.api.micro_batch_stats import MicroBatchStats, gain_line, gate_line

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 1.0
_TELL_EVERY_S: Final = 3600.0


class MicroBatchLog:
    """Looks at the figures of micro-batches once a second, while there are steps.

    Args:
        stats: Returns them; None: micro-batches are off.
    """

    def __init__(self, stats: Callable[[], MicroBatchStats | None]) -> None:
        self._stats = stats
        self._look_at = 0.0
        self._tell_at: float | None = None
        self._told: MicroBatchStats | None = None
        self._seen: MicroBatchStats | None = None

    def step(self, now: float) -> None:
        """Note that a step is over, at `now` in seconds."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        stats = self._stats()
        if stats is None:
            return
        self._tell_gates(stats)
        self._tell_gain(stats, now)
        self._seen = stats

    def _tell_gates(self, stats: MicroBatchStats) -> None:
        if self._seen is None:
            return
        for phase, state in stats.gates.items():
            if state.is_open != self._seen.gates[phase].is_open:
                _LOG.info("%s", gate_line(phase, state))

    def _tell_gain(self, stats: MicroBatchStats, now: float) -> None:
        if self._tell_at is None or self._told is None:
            self._tell_at, self._told = now + _TELL_EVERY_S, stats
        elif now >= self._tell_at:
            _LOG.info("%s", gain_line(self._told, stats))
            self._tell_at, self._told = now + _TELL_EVERY_S, stats
