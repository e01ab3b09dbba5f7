"""Drafts of decode rows: how many each may have, and what became of them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from tandem_engine.api.drafts import NO_LIMITS, DraftLimits, DraftMethod, Proposals
from tandem_engine.api.output import DraftCounts
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.api.step import Step, StepResult
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.drafts import (
    Acceptance,
    AllDrafts,
    Checked,
    CheckedDrafts,
    DraftPolicy,
    PayingDrafts,
    Room,
)
from tandem_engine.scheduler.records.records import StepRecord
from tandem_engine.scheduler.sequence import Sequence

_NO_METHODS: Final[Mapping[str, DraftMethod]] = {}


class Drafting:
    """The policy of drafts, and counts of them.

    Args:
        settings: The method, and the most drafts of a row.
        model: Predicts the time of a step.
        token_price: Cost of a token to the draft model, as a share of its cost to the model.
    """

    def __init__(
        self, settings: SpeculationConfig, model: StepTimeModel, *, token_price: float = 0.0
    ) -> None:
        self._most = settings.most_drafts
        self._token_price = token_price
        self._acceptance = Acceptance()
        self._policy = _policy_of(settings, model, self._acceptance)
        self._counts = {method: _Counts(self._most) for method in settings.methods}
        # Of the drafts of the step that is not complete: there is one at most.
        self._methods = _NO_METHODS
        self._num_passes = 0
        self._has_caught_up = False
        # Rows that the draft model cannot guess for.
        self._never = set[str]()
        self._has_model = "draft" in settings.methods

    @property
    def is_on(self) -> bool:
        """True if there is speculation."""
        return self._most > 0

    def limits(
        self, decoding: Collection[Sequence], max_tokens: int, *, has_prompts: bool
    ) -> DraftLimits:
        """Return the rows that drafts would help now, with the most that each may have.

        Args:
            decoding: The rows that decode.
            max_tokens: Tokens of a step at most; the draft model computes no more in one pass.
            has_prompts: True if prompts could use the time of the step.
        """
        if not self._most or not decoding:
            return NO_LIMITS
        counts = ((row.sequence_id, self._room(row)) for row in decoding)
        room = {sequence_id: count for sequence_id, count in counts if count > 0}
        by_model = room if self._has_model else {}
        if by_model and self._never:
            by_model = {name: count for name, count in room.items() if name not in self._never}
        limits = self._policy.limits(_load(decoding), Room(room, by_model), has_prompts=has_prompts)
        return replace(limits, num_tokens=max_tokens) if limits.draft else limits

    def take(self, proposals: Proposals) -> int:
        """Take note of the drafts of the next step; return the tokens of it that they have cost."""
        self._methods = {name: draft.method for name, draft in proposals.drafts.items()}
        self._num_passes = proposals.num_passes
        self._has_caught_up = proposals.has_caught_up
        self._never.update(proposals.never)
        self._has_model = self._has_model and not proposals.has_failed
        self._policy.count_step()
        return int(self._token_price * proposals.num_computed)

    def expected(self, sequence_id: str, count: int) -> float:
        """Return how many of the `count` drafts of a row are expected to be right."""
        method = self._methods.get(sequence_id)
        return 0.0 if method is None else self._acceptance.expected(method, sequence_id, count)

    def learn(self, record: StepRecord, result: StepResult) -> int:
        """Learn from a step that had drafts; return how many of them were right."""
        step = record.step
        rows = dict(self._checked(step, result))
        for sequence_id, row in rows.items():
            self._acceptance.add(row.method, sequence_id, row.drafted, row.accepted)
            self._counts[row.method].add(row)
        num_drafts = sum(map(len, step.drafts.values()))
        self._policy.learn(
            CheckedDrafts(
                load=replace(record.load, num_tokens=record.load.num_tokens - num_drafts),
                has_chunks=step.num_decodes < len(step.sequence_ids),
                seconds=record.seconds,
                drafting_s=record.drafting_s,
                num_passes=self._num_passes,
                has_caught_up=self._has_caught_up,
                rows=rows,
            )
        )
        return sum(row.accepted for row in rows.values())

    def forget(self, sequence_ids: Iterable[str]) -> None:
        """Forget sequences that have ended."""
        self._acceptance.forget(sequence_ids)
        self._never.difference_update(sequence_ids)

    def counts_so_far(self) -> Mapping[DraftMethod, DraftCounts]:
        """Return the drafts since the start, by method; none: there is no speculation."""
        return {method: counts.so_far() for method, counts in self._counts.items()}

    def _room(self, row: Sequence) -> int:
        """Return the drafts that a row may have; its request's choices must all have begun."""
        if row.rows > 1 or not row.num_output or row.group.search:
            return 0
        return min(self._most, row.max_total - row.num_tokens - 1)

    def _checked(self, step: Step, result: StepResult) -> Iterator[tuple[str, Checked]]:
        """Yield the rows that had drafts and got tokens."""
        for sequence_id, drafts in step.drafts.items():
            tokens = result.tokens.get(sequence_id)
            if tokens:
                method = self._methods[sequence_id]
                yield sequence_id, Checked(method, len(drafts), len(tokens) - 1)


class _Counts:
    """Drafts of one method since the start."""

    def __init__(self, most: int) -> None:
        self._num_drafted = 0
        self._accepted = [0] * most

    def add(self, row: Checked) -> None:
        self._num_drafted += row.drafted
        for place in range(row.accepted):
            self._accepted[place] += 1

    def so_far(self) -> DraftCounts:
        return DraftCounts(num_drafted=self._num_drafted, accepted=tuple(self._accepted))


def _policy_of(
    settings: SpeculationConfig, model: StepTimeModel, acceptance: Acceptance
) -> DraftPolicy:
    if settings.method == "auto":
        return PayingDrafts(settings.methods, model, acceptance)
    return AllDrafts(settings.methods)


def _load(decoding: Collection[Sequence]) -> StepLoad:
    return StepLoad(
        num_tokens=len(decoding),
        num_rows=len(decoding),
        chunk_context=0.0,
        decode_context=sum([row.num_tokens for row in decoding]),
    )
