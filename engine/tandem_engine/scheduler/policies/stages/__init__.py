"""Stage policies: prefill or decode next (stageSelectPolicy).

Only the strategy continuous uses them (as MindIE's stageSelectPolicy does).
"""

from typing import Protocol

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.stages.stage_policies import (
    LeastLaxity,
    PrefillFirst,
    ThroughputFirst,
)
from tandem_engine.scheduler.policies.stages.stage_view import Stage, StageView


class StagePolicy(Protocol):
    """Chooses between the two stages."""

    def choose(self, view: StageView, schedule: ScheduleConfig) -> Stage:
        """Return the stage of the next step; called once for each."""


def stage_policy_for(number: int, model: StepTimeModel) -> StagePolicy:
    """Return a new policy: the one of throughput remembers waste.

    Args:
        number: stageSelectPolicy, from 0 to 2.
        model: Predicts the time of a step; its owner lets it learn.
    """
    if number == 0:
        return PrefillFirst()
    return ThroughputFirst() if number == 1 else LeastLaxity(model)


__all__ = ["Stage", "StagePolicy", "StageView", "stage_policy_for"]
