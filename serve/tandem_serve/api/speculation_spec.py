"""`spec.engine.speculation`: draft tokens, and the model that may compute them."""

from typing import ClassVar, Final

from tandem_engine.api.checks import Check
from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.model import Model
from tandem_engine.api.speculation import (
    MaxDraftTokens,
    SpeculationConfig,
    SpeculationMethod,
    draft_checks,
)
from tandem_serve.api.source import Source

DRAFT_SOURCE: Final = "speculation.draft.source"


class DraftSpec(Source):
    """The draft model: a smaller one with the same tokenizer, in the memory of the replica."""


class SpeculationSpec(Model):
    """Draft tokens: guesses that a step checks side by side, which changes no answer."""

    method: SpeculationMethod | None = None
    """Where drafts come from. ngram: from what followed the same tokens before, in the request or
    in what others of the replica have written (MindIE's memory_decoding), whenever there are
    some. draft: from the draft model. auto: from both, each where it is predicted to pay, and off
    where it was measured not to. none: there are none. Absent means auto with a draft model or with
    schedule.strategy speculative, and else none."""

    draft: DraftSpec | None = None
    """The draft model of method draft, and of auto where there is one."""

    max_draft_tokens: MaxDraftTokens = 4
    """Draft tokens of one sequence in a step at most (MindIE speculationGamma)."""

    CHECKS: ClassVar[tuple[Check, ...]] = draft_checks("draft")

    def resolved(self, schedule: ScheduleConfig) -> "SpeculationSpec":
        """Return the same with the method written down."""
        is_asked_for = self.draft is not None or schedule.strategy == "speculative"
        method = self.method or ("auto" if is_asked_for else "none")
        return self.model_copy(update={"method": method})

    def engine_config(self, schedule: ScheduleConfig) -> SpeculationConfig:
        """Return these settings as the engine takes them."""
        return SpeculationConfig(
            method=self.resolved(schedule).method or "none",
            draft_path=None if self.draft is None else self.draft.path,
            max_draft_tokens=self.max_draft_tokens,
        )
