"""Beam search: the choice of the beginnings that go on, and of the best finished ones.

The rules are those of `transformers` (GenerationMixin with num_beams > 1 and without sampling), so
that both give the same tokens in the same order. One step, for `width` beams:

1. Every live beam comes with its likeliest continuations; the score of each is the sum of the
   log-probabilities of all its output tokens. They are put in order, best first.
2. Of the first `width`, those that end in an end token are finished. One that ends further down is
   given up: it is neither finished nor continued.
3. The first `width` that do not end are the live beams of the next step. At max_new_tokens there
   are none: the first `width` are finished, whatever their last token.
4. Finished beams are ranked by score / length ** length_penalty; the length counts output tokens,
   the end token among them. The best `width` are kept.

It is done when nothing is live, or when `width` beams have finished and

- early_stopping is true; or
- the best live beam, were it to finish with the sum that it has, would be no better than the worst
  finished one. Its length is taken as the one it has (early_stopping false, which may err when
  length_penalty is positive) or, with "never" and a positive length_penalty, as max_new_tokens,
  which makes its score as good as it can get.

Of equal scores the one with the better parent goes first, then the one earlier in the row of
candidates; of equal finished beams the one that finished first, and in one step the one that
stood further up. `transformers` leaves ties to torch.topk, which defines no order. It adds up in
float32, this module in float64: sums that differ by less than a rounding of float32 may swap
ranks.

While fewer than `width` continuations exist, which takes a vocabulary of a few tokens, fewer beams
are live; `transformers` fills up with copies that score −1e9.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final, Literal, NamedTuple

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.api.output import FinishReason, TokenLogprob
from tandem_engine.api.step import BeamMove, Candidate, SampledToken

# Keeps length ** length_penalty inside the range of a float: 4,194,304 tokens to the 46th leave it.
MAX_LENGTH_PENALTY: Final = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamStep:
    """The moves of all beams; they happen at once."""

    moves: Mapping[str, BeamMove] = field(default_factory=dict)
    """Sequence id → its move, likeliest first: the live beams of the next step. The
    likeliest child of a beam stays under the id of the beam, where its KV blocks are."""
    dropped: tuple[str, ...] = ()
    """Sequences that were live and are not any more: what they hold can be freed. One may
    come back, as the child of another, when a tiny vocabulary left fewer live beams than width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A finished beam."""

    tokens: tuple[SampledToken, ...]
    """The output, each token with the log-probability that its candidate had."""
    score: float
    """Sum of the log-probabilities over length ** length_penalty."""
    finish_reason: FinishReason
    """stop: the last token is an end token. length: max_new_tokens was reached."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Link:
    """The last token of a beginning; beams share the links of the tokens that they share.

    A step makes `width` links, and no list of tokens is copied; links to which no beam leads any
    more are freed. Comparing or printing one would run through the whole output, so it cannot.
    """

    before: "_Link | None"
    candidate: Candidate


class _Beam(NamedTuple):
    """A live beam."""

    sequence_id: str
    total: float
    """Sum of the log-probabilities of its output tokens."""
    last: _Link | None
    """None before the first output token."""


class _Continuation(NamedTuple):
    """A live beam and a token that may follow it."""

    total: float
    parent: _Beam
    candidate: Candidate

    def link(self) -> _Link:
        """The tokens of the parent and the new one."""
        return _Link(self.parent.last, self.candidate)


class _Finished(NamedTuple):
    score: float
    last: _Link
    finish_reason: FinishReason


class BeamSearch:
    """The beams of one request. It sees candidates, never logits, and moves no KV blocks.

    Args:
        sequence_ids: Ids of the beams, as many as the search is wide; the first one computes the
            prompt. `transformers` searches greedily when the width is 1; this class does not.
        num_best: Finished beams to return, at most the width.
        max_new_tokens: Output tokens at most.
        min_new_tokens: Output tokens before an end token may come; candidates that would end
            earlier are skipped, and their probability is given to no other token.
        stop_token_ids: Tokens that end an output, which they are part of.
        length_penalty: Positive favours long outputs, negative short ones.
        early_stopping: See the head of the module.

    Raises:
        InvalidParameter: length_penalty is not in ±MAX_LENGTH_PENALTY.
    """

    def __init__(
        self,
        *,
        sequence_ids: Sequence[str],
        num_best: int,
        max_new_tokens: int,
        min_new_tokens: int,
        stop_token_ids: frozenset[int],
        length_penalty: float,
        early_stopping: bool | Literal["never"],
    ) -> None:
        if not -MAX_LENGTH_PENALTY <= length_penalty <= MAX_LENGTH_PENALTY:
            raise InvalidParameter(
                f"length_penalty is {length_penalty}; it must be in "
                f"[{-MAX_LENGTH_PENALTY}, {MAX_LENGTH_PENALTY}].",
                parameter="length_penalty",
            )
        self._sequence_ids = tuple(sequence_ids)
        self._width = len(self._sequence_ids)
        self._num_best = num_best
        self._max_new_tokens = max_new_tokens
        self._min_new_tokens = min_new_tokens
        self._stop_token_ids = stop_token_ids
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_tokens = 0  # output tokens of every live beam
        self._live = [_Beam(self._sequence_ids[0], 0.0, None)]  # best first
        self._finished: list[_Finished] = []  # best first, at most width

    @property
    def is_done(self) -> bool:
        """True if no step is left to make."""
        return not self._live

    def advance(self, candidates: Mapping[str, Sequence[Candidate]]) -> BeamStep:
        """Choose the beams of the next step; O(width · log width).

        Args:
            candidates: Sequence id of each live beam → its likeliest continuations, best first.
                width + len(stop_token_ids) of them always suffice, since no row can end more often
                than there are end tokens; so do 2 · width with up to `width` end tokens.
                A log-probability of −inf marks a token that may not come.
        """
        previous = [beam.sequence_id for beam in self._live]
        if candidates.keys() != set(previous):
            raise AssertionError(
                f"Candidates came for beams {sorted(candidates)}, "
                f"while {sorted(previous)} are live; this is a bug."
            )
        self._num_tokens += 1
        survivors = self._sift(self._ranked(candidates))
        self._live = [] if self._is_decided(survivors) else self._named(survivors)
        moves = {
            beam.sequence_id: BeamMove(each.parent.sequence_id, each.candidate.token_id)
            for beam, each in zip(self._live, survivors, strict=False)
        }
        dropped = tuple(sequence_id for sequence_id in previous if sequence_id not in moves)
        return BeamStep(moves=moves, dropped=dropped)

    def best(self) -> list[Hypothesis]:
        """The best finished beams, best first: num_best once it is done, fewer before.

        There are fewer also when a tiny vocabulary has no more outputs than that.
        """
        return [
            Hypothesis(
                tokens=_tokens(finished.last),
                score=finished.score,
                finish_reason=finished.finish_reason,
            )
            for finished in self._finished[: self._num_best]
        ]

    def _ranked(self, candidates: Mapping[str, Sequence[Candidate]]) -> Iterator[_Continuation]:
        """All continuations, best first, worked out as far as they are read."""
        rows = [self._continuations(beam, candidates[beam.sequence_id]) for beam in self._live]
        # The merge is stable, and self._live is in order: this is the rule for ties.
        return heapq.merge(*rows, key=lambda continuation: -continuation.total)

    def _continuations(self, beam: _Beam, row: Sequence[Candidate]) -> Iterator[_Continuation]:
        may_end = self._num_tokens > self._min_new_tokens
        for candidate in row:
            if candidate.logprob == -inf:
                return  # and all that follow are −inf too
            if may_end or candidate.token_id not in self._stop_token_ids:
                yield _Continuation(beam.total + candidate.logprob, beam, candidate)

    def _sift(self, ranked: Iterable[_Continuation]) -> list[_Continuation]:
        """Note the continuations that are finished; return those that go on, at most `width`."""
        survivors: list[_Continuation] = []
        ended: list[_Finished] = []
        if self._num_tokens == self._max_new_tokens:
            ranked = islice(ranked, self._width)  # none goes on: do not look for them
        for rank, continuation in enumerate(ranked):
            reason = self._finish_reason(continuation.candidate.token_id)
            if reason is None:
                survivors.append(continuation)
            elif rank < self._width:
                score = self._score(continuation.total, self._num_tokens)
                ended.append(_Finished(score, continuation.link(), reason))
            if len(survivors) == self._width:
                break
        # The sort keeps equals in order: those that finished first, first.
        ranking = sorted(self._finished + ended, key=lambda finished: -finished.score)
        self._finished = ranking[: self._width]
        return survivors

    def _finish_reason(self, token_id: int) -> FinishReason | None:
        if token_id in self._stop_token_ids:
            return "stop"
        return "length" if self._num_tokens == self._max_new_tokens else None

    def _score(self, total: float, length: int) -> float:
        return total / float(length**self._length_penalty)

    def _is_decided(self, survivors: Sequence[_Continuation]) -> bool:
        """Return True if the finished beams are final."""
        if not survivors:
            return True
        if len(self._finished) < self._width:
            return False
        if self._early_stopping is True:
            return True
        length = self._num_tokens
        if self._early_stopping == "never" and self._length_penalty > 0.0:
            length = self._max_new_tokens
        return self._score(survivors[0].total, length) <= self._finished[-1].score

    def _named(self, survivors: Sequence[_Continuation]) -> list[_Beam]:
        """Give each survivor an id: the parent's to its best child, a spare one to the others."""
        parents = {continuation.parent.sequence_id for continuation in survivors}
        spare = (each for each in self._sequence_ids if each not in parents)
        taken: set[str] = set()
        beams: list[_Beam] = []
        for continuation in survivors:
            own = continuation.parent.sequence_id
            sequence_id = next(spare) if own in taken else own
            taken.add(sequence_id)
            beams.append(_Beam(sequence_id, continuation.total, continuation.link()))
        return beams


def _tokens(last: _Link) -> tuple[SampledToken, ...]:
    """The tokens up to `last`, in the order of the output."""
    tokens: list[SampledToken] = []
    link: _Link | None = last
    while link is not None:
        token_id, logprob = link.candidate
        tokens.append(SampledToken(token_id, TokenLogprob(token_id, logprob)))
        link = link.before
    return tuple(reversed(tokens))
