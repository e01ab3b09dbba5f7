"""Records of steps in which a sequence waited."""

from math import inf

from tandem_engine.api.step import Step
from tandem_engine.api.steps import WaitExplanation
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.records.explain import explain
from tandem_engine.scheduler.records.records import StepRecord


def wait_of(sequence_id: str, reason: Reason, *, token_budget: int = 64) -> WaitExplanation:
    """Return the explanation of a sequence that waited in a step with this budget."""
    record = StepRecord(
        number=0,
        started=0.0,
        step=Step(),
        load=StepLoad(num_tokens=0, num_rows=0, chunk_context=0.0, decode_context=0),
        token_budget=token_budget,
        max_token_budget=0,
        predicted_s=None,
        num_waiting=1,
        num_swapped=0,
        blocked_by=reason,
        first=sequence_id,
        first_needs=0,
        num_free_blocks=0,
        skipped=(),
        known=(),
        hits={},
        swapped=(),
        wake_at=inf,
    )
    (step,) = explain([record])
    if step.blocked_by is None:
        raise AssertionError(reason)
    return step.blocked_by
