"""Beam search on any made-up model: as a plain search finds it, or one that tries all outputs."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.step import Candidate
from tandem_engine.scheduler.beam_search import BeamSearch, Hypothesis

EarlyStopping = bool | Literal["never"]
Tokens = tuple[int, ...]


def row(logprobs: Sequence[float]) -> list[Candidate]:
    """A whole vocabulary as candidates, best first and equals by token id."""
    candidates = [Candidate(token_id, logprob) for token_id, logprob in enumerate(logprobs)]
    return sorted(candidates, key=lambda candidate: -candidate.logprob)


def tokens_of(hypothesis: Hypothesis) -> Tokens:
    return tuple(token.token_id for token in hypothesis.tokens)


@dataclass(frozen=True)
class Case:
    """A search over a made-up model: what may follow depends on all the tokens before."""

    rows: tuple[tuple[int, ...], ...]
    """Log-probabilities in eighths: sums and ties are exact."""
    width: int
    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: frozenset[int]
    length_penalty: float
    early_stopping: EarlyStopping

    @property
    def vocab_size(self) -> int:
        return len(self.rows[0])

    def logprobs(self, tokens: Tokens) -> list[float]:
        number = sum((token_id + 1) * (at + 2) for at, token_id in enumerate(tokens))
        return [-eighths / 8 for eighths in self.rows[number % len(self.rows)]]

    def score(self, total: float, length: int) -> float:
        return float(total / length**self.length_penalty)

    def ends(self, tokens: Tokens) -> bool:
        return tokens[-1] in self.stop_token_ids

    def may_come(self, tokens: Tokens) -> bool:
        return not self.ends(tokens) or len(tokens) > self.min_new_tokens

    def search(self) -> BeamSearch:
        return BeamSearch(
            sequence_ids=[f"s{index}" for index in range(self.width)],
            num_best=self.width,
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            stop_token_ids=self.stop_token_ids,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


@st.composite
def cases(draw: st.DrawFn, *, max_width: int = 6, max_length: int = 6) -> Case:
    vocab_size = draw(st.integers(2, 7))
    max_new_tokens = draw(st.integers(1, max_length))
    logprobs = st.tuples(*[st.integers(0, 24)] * vocab_size)
    return Case(
        rows=tuple(draw(st.lists(logprobs, min_size=1, max_size=7))),
        width=draw(st.integers(1, max_width)),
        max_new_tokens=max_new_tokens,
        min_new_tokens=draw(st.integers(0, max_new_tokens)),
        stop_token_ids=frozenset(draw(st.sets(st.integers(0, vocab_size - 1), max_size=3))),
        length_penalty=draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0])),
        early_stopping=draw(st.sampled_from([True, False, "never"])),
    )


Scored = tuple[float, Tokens]


def best_first(scored: Sequence[Scored]) -> list[Scored]:
    return sorted(scored, key=lambda each: each[0], reverse=True)


def plain_search(case: Case) -> list[Scored]:
    """The same rules over whole lists of tokens and the whole vocabulary."""
    live: list[Scored] = [(0.0, ())]
    finished: list[Scored] = []
    for length in range(1, case.max_new_tokens + 1):
        every = best_first(
            [
                (total + logprob, (*tokens, token_id))
                for total, tokens in live
                for logprob, token_id in sorted(
                    ((logprob, token_id) for token_id, logprob in enumerate(case.logprobs(tokens))),
                    key=lambda pair: -pair[0],
                )
                if case.may_come((*tokens, token_id))
            ]
        )
        is_last = length == case.max_new_tokens
        new = [
            (case.score(total, length), tokens)
            for total, tokens in every[: case.width]
            if is_last or case.ends(tokens)
        ]
        finished = best_first(finished + new)[: case.width]
        live = [each for each in every if not case.ends(each[1])][: case.width]
        if is_last or not live:
            break
        if len(finished) == case.width:
            at_best = length
            if case.early_stopping == "never" and case.length_penalty > 0:
                at_best = case.max_new_tokens
            is_hopeless = case.score(live[0][0], at_best) <= finished[-1][0]
            if is_hopeless or case.early_stopping is True:
                break
    return finished


def run(case: Case, *, num_candidates: int | None = None) -> list[Scored]:
    """Drive BeamSearch, watching over what it says of the beams."""
    search = case.search()
    said: dict[str, Tokens] = {"s0": ()}
    while not search.is_done:
        step = search.advance(
            {each: row(case.logprobs(tokens))[:num_candidates] for each, tokens in said.items()}
        )
        assert len(step.moves) <= case.width
        assert set(step.dropped) == said.keys() - step.moves.keys()
        for parent in {move.parent for move in step.moves.values()}:
            assert step.moves[parent].parent == parent
        said = {each: (*said[move.parent], move.token_id) for each, move in step.moves.items()}
        assert len(set(said.values())) == len(said)
    for hypothesis in search.best():
        tokens = tokens_of(hypothesis)
        assert hypothesis.finish_reason == ("stop" if case.ends(tokens) else "length")
        assert len(tokens) == case.max_new_tokens or hypothesis.finish_reason == "stop"
        total = sum(token.logprob.logprob for token in hypothesis.tokens if token.logprob)
        assert hypothesis.score == case.score(total, len(tokens))
    return [(each.score, tokens_of(each)) for each in search.best()]


@given(cases())
def test_the_outputs_are_those_of_a_plain_search(case: Case) -> None:
    assert run(case) == plain_search(case)


@given(cases())
def test_width_and_end_tokens_together_are_candidates_enough(case: Case) -> None:
    num_candidates = case.width + len(case.stop_token_ids)

    assert run(case, num_candidates=num_candidates) == run(case)


@given(cases(max_length=3))
def test_a_search_that_is_wide_enough_finds_the_best_of_all_outputs(case: Case) -> None:
    everything = Case(**{**vars(case), "width": 7**3 + 7**2 + 7})
    expected = []
    for length in range(1, case.max_new_tokens + 1):
        for tokens in itertools.product(range(case.vocab_size), repeat=length):
            starts = [tokens[: at + 1] for at in range(length)]
            is_whole = case.ends(tokens) or length == case.max_new_tokens
            if any(map(case.ends, starts[:-1])) or not is_whole or not case.may_come(tokens):
                continue
            total = sum(case.logprobs(start[:-1])[start[-1]] for start in starts)
            expected.append((case.score(total, length), tokens))

    found = run(everything)

    # The order of equals depends on the way; so only their scores are in order here.
    assert sorted(found) == sorted(expected)
    assert [score for score, _ in found] == sorted((score for score, _ in expected), reverse=True)
