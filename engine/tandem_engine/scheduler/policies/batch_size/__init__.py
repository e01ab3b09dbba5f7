"""Policies on the number of running sequences."""

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.batch_size.batch_size_policy import (
    BatchSizePolicy,
    BatchSizeView,
    FixedBatchSize,
)
from tandem_engine.scheduler.policies.batch_size.bisection import BisectedBatchSize
from tandem_engine.scheduler.policies.batch_size.predicted import PredictedBatchSize


def batch_size_for(schedule: ScheduleConfig, slo: Slo, model: StepTimeModel) -> BatchSizePolicy:
    """Return MindIE's bisection with dynamicBatchSizeEnable, else a policy for the TPOT target.

    Args:
        schedule: The settings; without target and dynamicBatchSizeEnable they hold as they are.
        slo: The latency targets.
        model: Predicts the time of a step; its owner lets it learn.
    """
    if schedule.dynamic_batch_size_enable:
        return BisectedBatchSize()
    if slo.tpot_s is None:
        return FixedBatchSize()
    return PredictedBatchSize(slo.tpot_s, model)


__all__ = ["BatchSizePolicy", "BatchSizeView", "batch_size_for"]
