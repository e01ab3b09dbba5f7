"""strategy dynamic: a batch forms at maxBatchSize requests or after maxQueueDelayMicroseconds.

Whichever comes first. All of it ends before the next batch forms.
"""

from tandem_engine.scheduler.policies.strategies.static import Batch
from tandem_engine.scheduler.policies.strategies.strategy import StrategyContext
from tandem_engine.scheduler.step_builder import StepBuilder


class Dynamic:
    """As static, with a bound on the wait."""

    def __init__(self, context: StrategyContext) -> None:
        self._batch = Batch(context)

    def fill(self, builder: StepBuilder) -> None:
        """Form a batch when no sequence runs; else go on with the running one."""
        self._batch.fill(builder, builder.schedule.max_queue_delay_microseconds / 1e6)
