"""stageSelectPolicy 2: the stage that is closer to missing its deadline goes first."""

from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.stages.stage_view import Stage, StageView

_MILLISECONDS: Final = 1e3


class LeastLaxity:
    """Least laxity first over predicted times (MindIE's stageSelectPolicy 2).

    laxity = (deadline − waited − predicted) / deadline, with prefillExpectedTime and
    decodeExpectedTime as deadlines. A prefill has waited as long as the request at the head; a
    decode has not waited. MindIE predicts by two models of its own, prompt tokens and rows with
    their blocks; here the one that predicts all steps knows both.

    Args:
        model: Predicts the time of a step; its owner lets it learn.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model

    def choose(self, view: StageView, schedule: ScheduleConfig) -> Stage:
        """Prefill when its laxity is the smaller one, and where there is nothing to decode.

        MindIE asks whether nothing runs before it asks whether nothing waits. Here it is the other
        way round: with both true, swapped-out sequences come back, and they do so in decode steps.
        """
        if view.must_decode(schedule) or not view.num_waiting:
            return "decode"
        if not view.num_running:
            return "prefill"
        if self._prefill_laxity(view, schedule) < self._decode_laxity(view, schedule):
            return "prefill"
        return "decode"

    def _prefill_laxity(self, view: StageView, schedule: ScheduleConfig) -> float:
        predicted = self._model.predict(view.waiting_load())
        return laxity(schedule.prefill_expected_time, view.head_wait_s, predicted)

    def _decode_laxity(self, view: StageView, schedule: ScheduleConfig) -> float:
        predicted = self._model.predict(view.decode_load())
        return laxity(schedule.decode_expected_time, 0.0, predicted)


def laxity(deadline_ms: int, waited_s: float, predicted_s: float) -> float:
    """Share of the deadline that is left over once the stage is done; 0 with no deadline."""
    if deadline_ms == 0:
        return 0.0
    deadline_s = deadline_ms / _MILLISECONDS
    return (deadline_s - waited_s - predicted_s) / deadline_s
