"""Speculation: the drafts of an engine, and where they come from."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from tandem_engine.api.checks import Check, Value, Written
from tandem_engine.api.drafts import DraftMethod
from tandem_engine.api.model import Model

SpeculationMethod = Literal["none", "ngram", "draft", "auto"]
MaxDraftTokens = Annotated[int, Field(ge=1, le=16)]

_METHODS: Final[dict[str, tuple[DraftMethod, ...]]] = {
    "none": (),
    "ngram": ("ngram",),
    "draft": ("draft",),
}


def draft_checks(source: str) -> tuple[Check, ...]:
    """Return the checks that a method has the draft model that it needs, and no other has one.

    Args:
        source: The field that names the model.
    """
    method = Value("method")
    has_none = method.equals("none") | method.equals("ngram")
    return (
        Check(
            field=source,
            refused=Written("method") & method.equals("draft") & ~Written(source),
            problem=f"method draft needs {source}, the checkpoint of a smaller model with the same "
            "tokenizer; name it, or set method: ngram, which needs none",
        ),
        Check(
            field=source,
            refused=Written("method") & has_none & Written(source),
            problem=f"{source} is the model of method draft or auto, not of {{method}}; "
            "set one of these, or leave it out",
        ),
    )


class SpeculationConfig(Model):
    """Draft tokens: guesses that a step checks side by side, which changes no answer."""

    method: SpeculationMethod = "none"
    """See the manifest's `spec.engine.speculation.method`."""

    draft_path: str | None = None
    """Folder of the draft model's checkpoint; None: there is none."""

    max_draft_tokens: MaxDraftTokens = 4
    """Draft tokens of one sequence in a step at most (MindIE speculationGamma)."""

    CHECKS: ClassVar[tuple[Check, ...]] = draft_checks("draftPath")

    @property
    def most_drafts(self) -> int:
        """Draft tokens of a sequence in a step; 0: there is no speculation."""
        return 0 if self.method == "none" else self.max_draft_tokens

    @property
    def methods(self) -> tuple[DraftMethod, ...]:
        """Where drafts may come from."""
        if self.method == "auto":
            return ("ngram",) if self.draft_path is None else ("ngram", "draft")
        return _METHODS[self.method]
