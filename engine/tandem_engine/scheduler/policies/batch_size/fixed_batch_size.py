"""The batch sizes that the settings give."""

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.policies.batch_size.batch_size_view import BatchLimits, BatchSizeView


class FixedBatchSize:
    """maxBatchSize and maxPrefillBatchSize as they are configured."""

    def limits(self, view: BatchSizeView, schedule: ScheduleConfig) -> BatchLimits:  # noqa: ARG002 - the protocol's
        """The configured values."""
        return BatchLimits(schedule.max_batch_size, schedule.prefill_rows)

    def observe_decode(self, latency_s: float, batch_size: int) -> None:
        """Ignore the step: the values are settings."""
