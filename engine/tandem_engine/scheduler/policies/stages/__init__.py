"""Stage policies: prefill or decode next (stageSelectPolicy), one file for each.

Only the strategy continuous uses them (as MindIE's stageSelectPolicy does).
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.policies.stages.least_laxity import LeastLaxity
from tandem_engine.scheduler.policies.stages.prefill_first import PrefillFirst
from tandem_engine.scheduler.policies.stages.stage_view import Stage, StageView
from tandem_engine.scheduler.policies.stages.throughput_first import ThroughputFirst


class StagePolicy(Protocol):
    """Chooses between the two stages."""

    def choose(self, view: StageView, schedule: ScheduleConfig) -> Stage:
        """Return the stage of the next step; called once for each."""

    def observe(self, stage: Stage, load: StepLoad, seconds: float) -> None:
        """Learn from a step that ran; only least laxity does."""


STAGE_POLICIES: Final[Mapping[int, Callable[[], StagePolicy]]] = {
    0: PrefillFirst,
    1: ThroughputFirst,
    2: LeastLaxity,
}
"""stageSelectPolicy; make a new one where it changes, for they remember waste and times."""

__all__ = ["STAGE_POLICIES", "Stage", "StagePolicy", "StageView"]
