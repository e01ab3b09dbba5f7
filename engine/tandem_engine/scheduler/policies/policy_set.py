"""The policies in force, as the parameters name them, and the models that they learn."""

from math import inf
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.orders import SPLIT_FUSE_ORDERS, STAGE_ORDERS, Order
from tandem_engine.scheduler.orders.laxity_order import LaxityOrder
from tandem_engine.scheduler.orders.order import bounded
from tandem_engine.scheduler.pace import Pace
from tandem_engine.scheduler.policies.batch_size import BatchSizeView, batch_size_for
from tandem_engine.scheduler.policies.budget import budget_for
from tandem_engine.scheduler.policies.stages import stage_policy_for
from tandem_engine.scheduler.policies.strategies import STRATEGIES, Strategy, StrategyContext
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.records.records import StepRecord
from tandem_engine.scheduler.step_rows import BatchLimits
from tandem_engine.scheduler.subsample import subsample

# Multiples of the TTFT target (or expected TTFT) after which a waiting request goes first,
# regardless of the order.
_AGE_BOUND: Final = 4.0


class PolicySet:
    """One policy of each kind, as the settings name them; rebuilt when a name changes.

    The model of the machine outlives a change of settings.
    """

    def __init__(self, schedule: ScheduleConfig, slo: Slo) -> None:
        self.schedule = schedule
        self.slo = slo
        self.model = StepTimeModel()
        """Predicts the time of a step."""
        self._choose()

    def reconfigure(self, schedule: ScheduleConfig, slo: Slo | None) -> None:
        """Take over new settings."""
        before = self._names()
        self.schedule, self.slo = schedule, self.slo if slo is None else slo
        if self._names() != before:
            self._choose()

    @property
    def age_bound_s(self) -> float:
        """Seconds after which the oldest waiting request goes first, where the order ages."""
        return _AGE_BOUND * (self.slo.ttft_s or self.schedule.prefill_expected_time / 1e3)

    def limits(self, queues: Queues, blocks: KVBlocks) -> BatchLimits:
        """Rows of the next step."""
        needs_means = self.slo.tpot is not None
        view = (
            _batch_view(queues, blocks)
            if needs_means
            else BatchSizeView(num_running=queues.num_rows, num_waiting=len(queues.waiting))
        )
        return self._batch_size.limits(view, self.schedule)

    def predict(self, load: StepLoad) -> float | None:
        """Seconds that a step is expected to take; None: it is empty."""
        return self.model.predict(load) if load.num_rows else None

    def learn(self, record: StepRecord) -> None:
        """Learn from a step that was computed."""
        step, seconds = record.step, record.seconds
        if not step.sequence_ids:
            return
        self.model.observe(record.load, seconds)
        if step.num_decodes:
            self._batch_size.observe_decode(seconds, step.num_decodes)

    def _names(self) -> tuple[object, ...]:
        schedule = self.schedule
        return (
            schedule.batching,
            schedule.stage_policy,
            schedule.prefill_policy_type,
            schedule.decode_policy_type,
            schedule.split_fuse.policy_type,
            schedule.dynamic_batch_size_enable,
            self.slo,
        )

    def _choose(self) -> None:
        schedule, slo = self.schedule, self.slo
        stages = stage_policy_for(schedule.stage_policy, self.model)
        self._batch_size = batch_size_for(schedule, slo, self.model)
        self.pace = Pace(slo)
        """Learns from the targets that were missed."""
        self.prompt_order, self.victims = self._orders()
        self.strategy: Strategy = STRATEGIES[schedule.batching](
            StrategyContext(
                order=self.prompt_order,
                stages=stages,
                budget=budget_for(slo, self.model),
                pace=self.pace,
                always_splits=slo.tpot is not None,
            )
        )

    def _orders(self) -> tuple[Order, Order]:
        """Return the order of prompts, and that of victims.

        splitFuse.policyType orders both, if it is not 0. A TTFT target orders prompts where no
        parameter does.
        """
        schedule = self.schedule
        policy = schedule.split_fuse.policy_type
        if schedule.is_split_fuse and policy:
            return SPLIT_FUSE_ORDERS[policy], bounded(SPLIT_FUSE_ORDERS[policy])
        victims = bounded(STAGE_ORDERS[schedule.decode_policy_type])
        if schedule.is_split_fuse and self.slo.ttft and not schedule.prefill_policy_type:
            ttft_s = self.slo.ttft_s or inf
            error_budget = self.pace.error_budget
            return LaxityOrder(lambda: self.model.coefficients.token, ttft_s, error_budget), victims
        return STAGE_ORDERS[schedule.prefill_policy_type], victims


def _batch_view(queues: Queues, blocks: KVBlocks) -> BatchSizeView:
    """Return the view of a batch size policy, with means over the running sequences."""
    num_running = queues.num_running
    num_rows = max(1, num_running)
    # Half a block a row for the last one of each: exact enough for a mean, and no call a row.
    longest = queues.longest_tokens / blocks.block_size + 0.5 * num_running
    running = [row.num_tokens for row in subsample(queues.decoding.values())]
    running += [row.num_tokens for row in subsample(queues.prefilling.values())]
    return BatchSizeView(
        num_running=queues.num_rows,
        num_waiting=len(queues.waiting),
        mean_context=sum(running) / max(1, len(running)),
        blocks_per_row=longest / num_rows,
        num_blocks=blocks.num_blocks,
    )
