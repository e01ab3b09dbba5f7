"""Draft tokens: guesses that a step checks side by side instead of one after another.

Leviathan et al., "Fast inference from transformers via speculative decoding", 2023. What is
sampled at a position depends on nothing but the tokens before it and the row's seed, so a draft
is right when it is that very token. The output is the same as without drafts, for rows that are
drawn too, and no random number is spent on accepting.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from tandem_engine.api.drafts import NO_PROPOSALS, Draft, Proposals
from tandem_engine.api.request import Request
from tandem_engine.api.step import SampledToken
from tandem_engine.sampling.row import Row

_LOG: Final = logging.getLogger(__name__)


class Drafter(Protocol):
    """Proposes continuations of sequences."""

    def propose(
        self, sequence_id: str, request: Request, output: Sequence[int], count: int
    ) -> Sequence[int]:
        """Return at most `count` tokens that may follow; none is allowed, too.

        Args:
            sequence_id: Of one sequence of the request.
            request: It has the prompt.
            output: The sequence's tokens behind the prompt, which only grow.
            count: Most guesses that the step can take.
        """

    def forget(self, sequence_id: str, request: Request, output: Sequence[int]) -> None:
        """Take note that a sequence has ended with `output`; an unknown one is ignored."""


class ModelDrafter(Protocol):
    """Proposes continuations of many sequences at once, by a model of its own."""

    def propose(self, asked: Mapping[Row, int], num_tokens: int) -> Proposals:
        """Guess how sequences go on; some may have no guess yet.

        Args:
            asked: Rows → guesses that the step can take, at most.
            num_tokens: Known tokens of rows that may be computed for it.
        """

    def forget(self, sequence_id: str) -> None:
        """Take note that a sequence has ended; an unknown one is ignored."""


class Proposer:
    """Has drafts proposed: looked up where there are some, else by the draft model.

    Either is off once it has raised: a guess is no reason to lose a request.

    Args:
        vocab_size: Token ids that the model has an embedding for.
        drafter: Looks drafts up; None: they are not looked up.
        draft_model: Computes them; None: there is no such model.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        drafter: Drafter | None = None,
        draft_model: ModelDrafter | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._drafter, self._draft_model = drafter, draft_model

    def look_up(self, counts: Mapping[str, int], rows: Mapping[str, Row]) -> dict[str, Draft]:
        """Return the drafts that are found for rows, at most `counts` tokens of each."""
        drafts_by_sequence: dict[str, Draft] = {}
        for sequence_id, count in counts.items():
            guesses = self._looked_up(rows[sequence_id], count)
            if drafts := usable(guesses, count, self._vocab_size):
                drafts_by_sequence[sequence_id] = Draft("ngram", drafts)
        return drafts_by_sequence

    def compute(self, counts: Mapping[Row, int], num_tokens: int) -> Proposals:
        """Return the drafts that the draft model has for rows; see `ModelDrafter.propose`."""
        if self._draft_model is None or not counts:
            return NO_PROPOSALS
        try:
            proposals = self._draft_model.propose(counts, num_tokens)
        except Exception:  # noqa: BLE001
            self._turn_off_model()
            return Proposals(has_failed=True)
        drafts_by_sequence: dict[str, Draft] = {}
        for row, count in counts.items():
            draft = proposals.drafts.get(row.sequence_id)
            if draft and (drafts := usable(draft.token_ids, count, self._vocab_size)):
                drafts_by_sequence[row.sequence_id] = Draft("draft", drafts)
        return replace(proposals, drafts=drafts_by_sequence)

    def forget(self, row: Row) -> None:
        """Take note that a sequence has ended."""
        if self._drafter is not None:
            try:
                self._drafter.forget(row.sequence_id, row.request, row.output)
            except Exception:  # noqa: BLE001
                self._turn_off()
        if self._draft_model is not None:
            try:
                self._draft_model.forget(row.sequence_id)
            except Exception:  # noqa: BLE001
                self._turn_off_model()

    def _looked_up(self, row: Row, count: int) -> Sequence[int]:
        if self._drafter is None:
            return ()
        try:
            return self._drafter.propose(row.sequence_id, row.request, row.output, count)
        except Exception:  # noqa: BLE001
            self._turn_off()
            return ()

    def _turn_off(self) -> None:
        self._drafter = None
        _LOG.exception("Draft tokens have failed and are off; this is a bug, please report it")

    def _turn_off_model(self) -> None:
        self._draft_model = None
        _LOG.exception("The draft model has failed and is off; this is a bug, please report it")


def usable(proposal: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The first `count` of `proposal`, up to the first id that the model has no embedding for."""
    taken: list[int] = []
    for token_id in proposal[:count]:
        if not 0 <= token_id < vocab_size:
            break
        taken.append(int(token_id))
    return taken


def accepted(
    sampled: Sequence[SampledToken | None], drafts: Sequence[int]
) -> Sequence[SampledToken]:
    """Return the tokens that the row yields: up to the first that its draft did not predict.

    Args:
        sampled: The token at each position: before the first draft, and behind each draft. None
            where the logits were not finite.
        drafts: The guesses.

    Returns:
        1 … drafts + 1 tokens; none when the first position has none.
    """
    tokens: list[SampledToken] = []
    for at, token in enumerate(sampled):
        if token is None:
            break
        tokens.append(token)
        if at < len(drafts) and token.token_id != drafts[at]:
            break
    return tokens
