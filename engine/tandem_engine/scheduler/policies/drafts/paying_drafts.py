"""Drafts where they are expected to pay, by what was accepted and what a token costs."""

from collections.abc import Collection, Mapping
from typing import Final

from tandem_engine.api.drafts import DraftLimits, DraftMethod
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.drafts.acceptance import Acceptance
from tandem_engine.scheduler.policies.drafts.draft_gate import FIRST_TRIAL, LAST_TRIAL, DraftGate
from tandem_engine.scheduler.policies.drafts.draft_policy import CheckedDrafts, Room

_FIRST_PASS: Final = 0.1
"""A forward pass of the draft model as a share of a step, before one was measured."""
_FADE: Final = 0.9
_MARGIN: Final = 1.15
"""Worth of a draft over its cost at least: what comes out even brings nothing but its risk."""


class PayingDrafts:
    """As many as are expected to save more time than they cost.

    With B sequences in a step of T seconds a token is worth T / B. A sequence of which a share p of
    the drafts is right gets p^j tokens from its j-th draft, which costs what the model of step
    times says one more token costs: nothing below its knee, the same as any other where a step
    is bound by computation. So drafts go by themselves where batches are large.

    The j-th drafts of the draft model cost a forward pass besides, which all sequences share: there
    are as many passes as bring more than they cost to all of them together. Where prompts wait they
    bring less: what a step takes beside its rows, it takes for the prompts.

    Predictions can be wrong, so that each method has a gate, which measures. A draft model that was
    not asked for some steps is asked for one token, as nothing else tells that it errs less now.

    Args:
        methods: Where drafts may come from.
        model: Predicts the time of a step.
        acceptance: Shares of drafts that are right.
    """

    def __init__(
        self, methods: Collection[DraftMethod], model: StepTimeModel, acceptance: Acceptance
    ) -> None:
        self._model, self._acceptance = model, acceptance
        self._gates: dict[DraftMethod, DraftGate] = {method: DraftGate() for method in methods}
        self._pass_s: float | None = None
        # Steps since the draft model was last asked, and as many as may be.
        self._num_without, self._trial_after = 0, FIRST_TRIAL

    def is_open(self, method: DraftMethod) -> bool:
        """Return False while drafts of a method were measured not to pay."""
        return method in self._gates and self._gates[method].is_open

    def limits(self, load: StepLoad, room: Room, *, has_prompts: bool = False) -> DraftLimits:
        """See `DraftPolicy`, as for all methods."""
        step_s = self._model.predict(load)
        worth_s = step_s / max(1, load.num_rows)
        # Prompts fill a step beyond the knee, so that a token is free in none that has some.
        is_free = load.num_tokens < self._model.knee and not has_prompts
        token_s = 0.0 if is_free else self._model.coefficients.token
        ngram: dict[str, int] = {}
        draft: dict[str, int] = {}
        if self.is_open("ngram"):
            ngram = self._paying("ngram", room.ngram, worth_s, token_s)
        if self.is_open("draft"):
            if has_prompts:
                worth_s = self._row_s(load)
            draft = self._paying("draft", room.draft, worth_s, token_s)
            num_passes = self._num_passes(draft, worth_s, token_s, step_s)
            draft = {name: min(count, num_passes) for name, count in draft.items() if num_passes}
            if not draft and self._num_without >= self._trial_after:
                draft = dict.fromkeys(room.draft, 1)
        if draft:
            ngram = {
                name: count
                for name, count in ngram.items()
                if name not in draft or self._is_surer(name, count, draft[name])
            }
        return DraftLimits(ngram=ngram, draft=draft)

    def count_step(self) -> None:
        """Count the steps without drafts of each method."""
        self._num_without += 1
        for gate in self._gates.values():
            gate.count_step()

    def learn(self, checked: CheckedDrafts) -> None:
        """Learn what drafts took, and what they brought."""
        if checked.num_passes:
            is_trial = self._num_without >= self._trial_after
            self._trial_after = min(2 * self._trial_after, LAST_TRIAL) if is_trial else FIRST_TRIAL
            self._num_without = 0
            # A pass that catches up on a prompt is no usual one.
            if not checked.has_caught_up:
                self._learn_pass(checked.drafting_s / checked.num_passes)
        if checked.has_chunks:
            return
        plain_s = self._model.predict(checked.load) * self._model.drift(has_chunks=False)
        num_accepted = sum(row.accepted for row in checked.rows.values())
        worth_s = plain_s * (1.0 + num_accepted / max(1, checked.load.num_rows))
        gate = self._gates.get("draft" if checked.num_passes else "ngram")
        if gate is not None:
            gate.judge(checked.seconds + checked.drafting_s, worth_s)

    def _row_s(self, load: StepLoad) -> float:
        """Return the time that a row takes of a step which prompts need anyway.

        It is all that a token saves there: the rest of the step, and the time of a pass, are
        theirs.
        """
        prices = self._model.coefficients
        context = load.decode_context / max(1, load.num_rows)
        return prices.token + prices.row + prices.decode_context * context

    def _paying(
        self, method: DraftMethod, room: Mapping[str, int], worth_s: float, token_s: float
    ) -> dict[str, int]:
        """Return the drafts of which each is worth being checked; a sequence without is left out.

        Args:
            method: Their origin.
            room: Sequence id → drafts at most.
            worth_s: Time that one more token saves.
            token_s: Time that checking one more token takes.
        """
        counts: dict[str, int] = {}
        cost_s = _MARGIN * token_s
        for sequence_id, most in room.items():
            share = self._acceptance.share(method, sequence_id)
            count, worth = 0, worth_s * share
            while count < most and worth > cost_s:
                count += 1
                worth *= share
            if count:
                counts[sequence_id] = count
        return counts

    def _num_passes(
        self, counts: Mapping[str, int], worth_s: float, token_s: float, step_s: float
    ) -> int:
        """Return the forward passes of the draft model of which each brings more than it takes."""
        pass_s = _FIRST_PASS * step_s if self._pass_s is None else self._pass_s
        shares = {name: self._acceptance.share("draft", name) for name in counts}
        brings = dict(shares)
        for number in range(max(counts.values(), default=0)):
            takers = [name for name, count in counts.items() if count > number]
            if sum(worth_s * brings[name] - token_s for name in takers) <= pass_s:
                return number
            for name in takers:
                brings[name] *= shares[name]
        return max(counts.values(), default=0)

    def _is_surer(self, sequence_id: str, looked_up: int, drafted: int) -> bool:
        """Return True if looking up brings as much as the draft model does."""
        expected = self._acceptance.expected
        return expected("ngram", sequence_id, looked_up) >= expected("draft", sequence_id, drafted)

    def _learn_pass(self, seconds: float) -> None:
        before = self._pass_s
        # A pause of the machine is no cost of a pass.
        usual = seconds if before is None else min(seconds, 2.0 * before)
        self._pass_s = usual if before is None else _FADE * before + (1.0 - _FADE) * usual
