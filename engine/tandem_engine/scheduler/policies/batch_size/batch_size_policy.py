"""A batch size policy: its input, and the one that is constant."""

from dataclasses import dataclass
from typing import Protocol

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.step_rows import BatchLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeView:
    """The scheduler before a step."""

    num_running: int
    """Sequences that hold KV blocks."""
    num_waiting: int
    """Requests that wait."""
    mean_context: float = 0.0
    """Tokens in the cache of a running sequence, on average."""
    tokens_per_row: float = 1.0
    """Tokens of a decode row: one, and its drafts."""
    blocks_per_row: float = 0.0
    """KV blocks that a sequence needs until its end, on average; 0: not known yet."""
    num_blocks: int = 0
    """KV blocks of the pool, free or held."""


class BatchSizePolicy(Protocol):
    """Moves maxBatchSize and maxPrefillBatchSize within what the settings allow."""

    def limits(self, view: BatchSizeView, schedule: ScheduleConfig) -> BatchLimits:
        """Return the limits of the next step; called once for each."""

    def observe_decode(self, latency_s: float, batch_size: int) -> None:
        """Learn from a step in which `batch_size` sequences decoded."""


class FixedBatchSize:
    """maxBatchSize and maxPrefillBatchSize as they are configured."""

    def limits(self, view: BatchSizeView, schedule: ScheduleConfig) -> BatchLimits:  # noqa: ARG002 - the protocol's
        """The configured values."""
        return BatchLimits(schedule.max_batch_size, schedule.prefill_rows)

    def observe_decode(self, latency_s: float, batch_size: int) -> None:
        """Ignore the step: the values are settings."""
