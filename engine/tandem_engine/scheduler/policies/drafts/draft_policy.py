"""The interface of a policy of drafts, and the simplest one."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from tandem_engine.api.drafts import DraftLimits, DraftMethod
from tandem_engine.scheduler.latency.step_load import StepLoad


class Checked(NamedTuple):
    """The drafts of one sequence in a step, checked."""

    method: DraftMethod
    drafted: int
    accepted: int


class CheckedDrafts(NamedTuple):
    """The drafts of a step, checked."""

    load: StepLoad
    """Of the step, without them."""
    has_chunks: bool
    """True if it computed prompts, too."""
    seconds: float
    """Duration of the step."""
    drafting_s: float
    """Time before it, in which drafts were proposed."""
    num_passes: int
    """Forward passes of the draft model in that time; 0: all drafts were looked up."""
    has_caught_up: bool
    """True if these passes computed prompts, too."""
    rows: Mapping[str, Checked]
    """Sequence id → its drafts."""


class Room(NamedTuple):
    """Drafts that sequences have room for, 1 or more each."""

    ngram: Mapping[str, int]
    """All that may have drafts."""
    draft: Mapping[str, int]
    """Those of them that the draft model can guess for."""


class DraftPolicy(Protocol):
    """Says how many drafts are worth being checked."""

    def limits(self, load: StepLoad, room: Room, *, has_prompts: bool = False) -> DraftLimits:
        """Return the drafts that sequences may have in the next step; asking changes nothing.

        Args:
            load: The decode rows of the step, without drafts.
            room: Drafts that they have room for.
            has_prompts: True if prompts could use the time of the step.
        """

    def count_step(self) -> None:
        """Take note of a step."""

    def learn(self, checked: CheckedDrafts) -> None:
        """Learn from a step that had drafts."""


class AllDrafts:
    """As many as there are: the method that is asked for is not second-guessed."""

    def __init__(self, methods: Collection[DraftMethod]) -> None:
        self._methods = methods

    def limits(
        self,
        load: StepLoad,  # noqa: ARG002  # an interface's parameter
        room: Room,
        *,
        has_prompts: bool = False,  # noqa: ARG002
    ) -> DraftLimits:
        """See `DraftPolicy`, as for all methods."""
        return DraftLimits(
            ngram=room.ngram if "ngram" in self._methods else {},
            draft=room.draft if "draft" in self._methods else {},
        )

    def count_step(self) -> None:
        """Do nothing."""

    def learn(self, checked: CheckedDrafts) -> None:
        """Do nothing."""
