"""Beam search as bookkeeping: cases worked out by hand."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan
from typing import Literal, overload

import pytest

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.api.output import TokenLogprob
from tandem_engine.api.step import BeamMove, Candidate, SampledToken
from tandem_engine.scheduler.beam_search import BeamSearch, BeamStep, Hypothesis

EarlyStopping = bool | Literal["never"]
Tokens = tuple[int, ...]

A, B, C, END = range(4)
LETTERS = "abc."
# Log-probabilities of a, b, c and the end after each token. They add up to no distribution: the
# search cannot tell, and whole numbers are added up without rounding and by hand.
AFTER: Mapping[int | None, Sequence[int]] = {
    None: (-3, -7, -6, -9),
    A: (-5, -8, -2, -7),
    B: (-9, -8, -1, -2),
    C: (-12, -5, -4, -1),
}
# Two beams, five tokens at most. "x" stands further down than second, so it is given up.
#
#   1   a −3    c −6   b −7    . −9 x             live  a, c
#   2   ac −5   c. −7  aa −8   a. −10 x           live  ac, aa       finished  c.
#   3   ac. −6  acc −9 acb −10 aac −10            live  acc, acb     finished  ac.
#   4   acc. −10  acbc −11  acb. −12 x  accc −13  live  acbc, accc   finished  acc.
#   5   acbc. −12  accc. −14                      live  none         finished  acbc. accc.
#
# Two are finished for the first time after step 3, when the best live beam has −9. With length
# penalty 1: c. −3.5, ac. −2; live −9 / 3 = −3 or, at full length, −9 / 5 = −1.8: both go on.
# After step 4: ac. −2, acc. −2.5; live −11 / 4 = −2.75 ends it, −11 / 5 = −2.2 goes on.
# After step 5: ac. −2, acbc. −2.4.
# With 0: c. −7, ac. −6; live −9 ends it. With −1: c. −14, ac. −18; live −27 ends it.
# With 2: after step 3 c. −7 / 4, ac. −6 / 9; live −9 / 9 goes on; after step 4 acc. −10 / 16,
# ac. −6 / 9; live −11 / 16 ends it, −11 / 25 goes on; after step 5 acbc. −12 / 25, accc. −14 / 25.
WORKED = [
    # length penalty, early stopping, steps, outputs with their scores
    (0.0, True, 3, {"ac.": -6, "c.": -7}),
    (0.0, False, 3, {"ac.": -6, "c.": -7}),
    (0.0, "never", 3, {"ac.": -6, "c.": -7}),
    (1.0, True, 3, {"ac.": -2, "c.": -3.5}),
    (1.0, False, 4, {"ac.": -2, "acc.": -2.5}),
    (1.0, "never", 5, {"ac.": -2, "acbc.": -2.4}),
    (2.0, True, 3, {"ac.": -6 / 9, "c.": -7 / 4}),
    (2.0, False, 4, {"acc.": -10 / 16, "ac.": -6 / 9}),
    (2.0, "never", 5, {"acbc.": -12 / 25, "accc.": -14 / 25}),
    (-1.0, True, 3, {"c.": -14, "ac.": -18}),
    (-1.0, False, 3, {"c.": -14, "ac.": -18}),
    (-1.0, "never", 3, {"c.": -14, "ac.": -18}),
]


def search_of(
    *,
    width: int = 2,
    num_best: int | None = None,
    max_new_tokens: int = 5,
    min_new_tokens: int = 0,
    stop_token_ids: frozenset[int] = frozenset({END}),
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
) -> BeamSearch:
    return BeamSearch(
        sequence_ids=[f"s{index}" for index in range(width)],
        num_best=num_best or width,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop_token_ids=stop_token_ids,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )


def row(logprobs: Sequence[float]) -> list[Candidate]:
    """A whole vocabulary as candidates, best first and equals by token id."""
    candidates = [Candidate(token_id, logprob) for token_id, logprob in enumerate(logprobs)]
    return sorted(candidates, key=lambda candidate: -candidate.logprob)


class Beams:
    """The other side of the search: it moves the tokens as told, and answers with candidates."""

    def __init__(self, search: BeamSearch, after: Mapping[int | None, Sequence[float]]) -> None:
        self.search = search
        self.tokens: dict[str, Tokens] = {"s0": ()}
        self._after = after

    def step(self) -> BeamStep:
        rows = {
            sequence_id: row(self._after[tokens[-1] if tokens else None])
            for sequence_id, tokens in self.tokens.items()
        }
        step = self.search.advance(rows)
        self.tokens = {
            sequence_id: (*self.tokens[move.parent], move.token_id)
            for sequence_id, move in step.moves.items()
        }
        return step

    def run(self) -> list[BeamStep]:
        steps = []
        while not self.search.is_done:
            steps.append(self.step())
        return steps

    @property
    def said(self) -> dict[str, str]:
        return {sequence_id: letters(tokens) for sequence_id, tokens in self.tokens.items()}


def letters(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token_id] for token_id in tokens)


def tokens_of(hypothesis: Hypothesis) -> Tokens:
    return tuple(token.token_id for token in hypothesis.tokens)


def outputs(search: BeamSearch) -> dict[str, float]:
    return {letters(tokens_of(each)): each.score for each in search.best()}


@pytest.mark.parametrize(("length_penalty", "early_stopping", "num_steps", "expected"), WORKED)
def test_the_case_worked_out_by_hand(
    length_penalty: float,
    early_stopping: EarlyStopping,
    num_steps: int,
    expected: dict[str, float],
) -> None:
    search = search_of(length_penalty=length_penalty, early_stopping=early_stopping)

    steps = Beams(search, AFTER).run()

    assert len(steps) == num_steps
    assert outputs(search) == pytest.approx(expected)
    assert list(outputs(search)) == list(expected)
    assert {each.finish_reason for each in search.best()} == {"stop"}


def test_the_best_child_stays_where_its_parent_was() -> None:
    beams = Beams(search_of(early_stopping="never"), AFTER)

    assert beams.step() == BeamStep(moves={"s0": BeamMove("s0", A), "s1": BeamMove("s0", C)})
    assert beams.step() == BeamStep(moves={"s0": BeamMove("s0", C), "s1": BeamMove("s0", A)})
    assert beams.said == {"s0": "ac", "s1": "aa"}
    assert beams.step().moves == {"s0": BeamMove("s0", C), "s1": BeamMove("s0", B)}
    # The child of s1 is the better one: it is named first, and stays s1.
    assert list(beams.step().moves.items()) == [
        ("s1", BeamMove("s1", C)),
        ("s0", BeamMove("s0", C)),
    ]
    assert beams.step() == BeamStep(dropped=("s1", "s0"))
    assert beams.search.is_done


def test_of_equal_sums_the_one_with_the_better_parent_goes_first() -> None:
    beams = Beams(search_of(), AFTER)

    for _ in range(3):
        beams.step()

    assert beams.said == {"s0": "acc", "s1": "acb"}  # not aac, which has −10 as acb has


def test_of_equal_finished_beams_the_one_that_finished_first_is_better() -> None:
    search = search_of(length_penalty=0.0, max_new_tokens=2)
    after = {None: (-1, -9, -9, -3), A: (-9, -9, -9, -2), B: (-9, -9, -9, -9)}

    Beams(search, after).run()

    assert outputs(search) == {".": -3, "a.": -3}
    assert list(outputs(search)) == [".", "a."]


def test_a_live_beam_that_is_just_as_good_as_the_worst_finished_one_is_given_up() -> None:
    search = search_of(length_penalty=0.0)
    after = {None: (-1, -50, -50, -2), A: (-50, -2, -50, -2), B: (-50, -50, -50, -50)}

    steps = Beams(search, after).run()  # finished: . −2, a. −3; live: ab −3

    assert len(steps) == 2
    assert outputs(search) == {".": -2, "a.": -3}


def test_a_negative_penalty_takes_the_length_that_a_beam_has_for_its_best_also_with_never() -> None:
    search = search_of(length_penalty=-1.0, early_stopping="never", max_new_tokens=6)
    after = {
        None: (-1, -50, -50, -2),
        A: (-50, -1, -50, -4),
        B: (-50, -50, -50, -1),
        C: (-50, -50, -50, -50),
    }

    # After step 2: . −2 · 1, a. −5 · 2; live ab −2 · 2, which six tokens would make −2 · 6.
    Beams(search, after).run()

    assert outputs(search) == {".": -2, "ab.": -9}


def test_the_last_token_ends_a_beam_whatever_it_is() -> None:
    search = search_of(max_new_tokens=2)

    Beams(search, AFTER).run()

    best = search.best()
    assert [letters(tokens_of(each)) for each in best] == ["ac", "c."]
    assert [each.finish_reason for each in best] == ["length", "stop"]


def test_every_token_has_the_logprob_of_its_candidate() -> None:
    search = search_of(early_stopping=True)

    Beams(search, AFTER).run()

    assert search.best()[0] == Hypothesis(
        tokens=(
            SampledToken(A, TokenLogprob(A, -3)),
            SampledToken(C, TokenLogprob(C, -2)),
            SampledToken(END, TokenLogprob(END, -1)),
        ),
        score=-2.0,
        finish_reason="stop",
    )


def test_the_search_is_as_wide_as_its_sequences_however_few_are_asked_for() -> None:
    search = search_of(num_best=1, early_stopping=True)

    steps = Beams(search, AFTER).run()

    assert len(steps) == 3  # one beam finished in step 2 already
    assert list(outputs(search)) == ["ac."]


def test_an_end_that_comes_too_early_is_skipped() -> None:
    search = search_of(min_new_tokens=2, early_stopping=True)

    Beams(search, AFTER).run()

    # c. would be finished in step 2; acb. is third in step 4 as before.
    assert list(outputs(search)) == ["ac.", "acc."]


def test_no_end_comes_when_every_output_has_to_be_of_full_length() -> None:
    search = search_of(min_new_tokens=3, max_new_tokens=3)

    Beams(search, AFTER).run()

    assert outputs(search) == {"acc": -3.0, "acb": -10 / 3}
    assert {each.finish_reason for each in search.best()} == {"length"}


def test_with_several_end_tokens_each_of_them_ends_a_beam() -> None:
    search = search_of(stop_token_ids=frozenset({B, END}), early_stopping=True)

    Beams(search, AFTER).run()

    # Step 3 has acb only third; step 2 as before.
    assert list(outputs(search)) == ["ac.", "c."]


def test_beams_without_a_continuation_are_dropped_and_come_back_when_there_are_more() -> None:
    search = search_of(width=3, max_new_tokens=4)
    after = {None: (-1, -2, -inf, -inf), A: (-inf, -inf, -inf, -1), B: (-1, -2, -3, -inf)}
    beams = Beams(search, after)

    assert beams.step() == BeamStep(moves={"s0": BeamMove("s0", A), "s1": BeamMove("s0", B)})
    step = beams.step()  # a. −2, ba −3, bb −4, bc −5
    assert step.dropped == ()
    assert beams.said == {"s1": "ba", "s0": "bb", "s2": "bc"}


def test_beams_that_all_end_leave_nothing_to_do() -> None:
    search = search_of()

    step = search.advance({"s0": [Candidate(END, -1.0)]})

    assert step == BeamStep(dropped=("s0",))
    assert search.is_done
    assert outputs(search) == {".": -1.0}


def test_a_beam_that_dies_out_is_dropped() -> None:
    after = {None: (-1, -2, -inf, -inf), A: (-1, -inf, -inf, -inf), B: (-inf, -inf, -inf, -9)}
    beams = Beams(search_of(), after)
    beams.step()

    assert beams.step() == BeamStep(moves={"s0": BeamMove("s0", A)}, dropped=("s1",))


@pytest.mark.parametrize("rows", [{}, {"s1": []}, {"s0": [], "s1": []}])
def test_candidates_of_other_beams_than_the_live_ones_are_a_bug(
    rows: dict[str, list[Candidate]],
) -> None:
    search = search_of()

    with pytest.raises(AssertionError, match=r"while \['s0'\] are live; this is a bug"):
        search.advance(rows)


def test_a_search_that_is_done_takes_no_more_candidates() -> None:
    search = search_of(max_new_tokens=1)
    search.advance({"s0": row((-1, -2, -3, -4))})

    with pytest.raises(AssertionError, match="this is a bug"):
        search.advance({"s0": row((-1, -2, -3, -4))})


@pytest.mark.parametrize("length_penalty", [32.5, -33.0, inf, nan])
def test_a_length_penalty_that_would_overflow_is_refused(length_penalty: float) -> None:
    with pytest.raises(
        InvalidParameter, match=rf"^length_penalty is {length_penalty}; it must be in \[-32.0, 32"
    ) as refused:
        search_of(length_penalty=length_penalty)
    assert refused.value.parameter == "length_penalty"


@pytest.mark.parametrize("length_penalty", [32.0, -32.0])
def test_the_largest_length_penalty_overflows_at_no_length(length_penalty: float) -> None:
    search = search_of(length_penalty=length_penalty)

    assert search._score(-1e6, 4_194_304) < 0.0


class Row(Sequence[Candidate]):
    """Candidates that count how many of them were read."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self.num_read = 0

    def __len__(self) -> int:
        return len(self._candidates)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | Sequence[Candidate]:
        return self._candidates[at]

    def __iter__(self) -> Iterator[Candidate]:
        for candidate in self._candidates:
            self.num_read += 1
            yield candidate


def test_a_step_looks_at_candidates_in_proportion_to_the_width() -> None:
    width = 64
    search = search_of(width=width, max_new_tokens=20)
    live = ["s0"]
    for _ in range(20):
        rows = {
            sequence_id: Row([Candidate(token_id, -token_id) for token_id in range(4, 2 * width)])
            for sequence_id in live
        }
        assert len(live) in (1, width)
        live = list(search.advance(rows).moves)
        # One of each row to begin with, and the next of a row for each that was taken.
        assert sum(each.num_read for each in rows.values()) <= len(rows) + width
    assert search.is_done
