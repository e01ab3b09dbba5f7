"""The counting runner: what it answers, and that it finds every broken rule of a scheduler."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.drafts import DraftLimits
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import BeamMove, BlockCopy, Step, StepResult
from tandem_engine.testing import CountingRunner

BLOCK_SIZE = 4
PROMPT = (7, 8, 9, 10, 11, 12)  # a block and a half

RowSpec = tuple[str, int, int, Sequence[int]]
"""A row: sequence id, start, tokens, block table."""


def request(
    name: str,
    prompt: Sequence[int] = PROMPT,
    *,
    stop_token_ids: frozenset[int] = frozenset(),
    cache_salt: str = "",
    **sampling: Any,
) -> Request:
    params = SamplingParams(**{"max_tokens": 64, **sampling})
    count = params.num_sequences
    return Request(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=params,
        max_new_tokens=64,
        stop_token_ids=stop_token_ids,
        seeds=tuple(range(count)),
        sequence_ids=tuple(f"{name}.{at}" for at in range(count)) if count > 1 else (),
        cache_salt=cache_salt,
    )


def runner_of(*requests: Request, **options: Any) -> CountingRunner:
    runner = CountingRunner(block_size=BLOCK_SIZE, **options)
    for each in requests:
        runner.add(each)
    return runner


def run(
    runner: CountingRunner,
    *rows: RowSpec,
    num_drafts: dict[str, int] | None = None,
    **others: Any,
) -> StepResult:
    ids, starts, counts, tables = zip(*rows, strict=True) if rows else ((), (), (), ())
    if num_drafts is not None:
        found = runner.propose(DraftLimits(ngram=num_drafts)).drafts
        others["drafts"] = {name: draft.token_ids for name, draft in found.items()}
    step = Step(sequence_ids=ids, num_tokens=counts, starts=starts, block_tables=tables, **others)
    return runner.run(step)


def tokens_of(result: StepResult) -> dict[str, list[int]]:
    return {name: [each.token_id for each in tokens] for name, tokens in result.tokens.items()}


# What it answers


@pytest.mark.parametrize("checks", [True, False])
def test_it_counts_once_the_prompt_is_computed(checks: bool) -> None:
    runner = runner_of(request("a"), checks=checks)

    assert not run(runner, ("a", 0, 4, [0])).tokens
    assert tokens_of(run(runner, ("a", 4, 2, [0, 1]))) == {"a": [0]}
    assert tokens_of(run(runner, ("a", 6, 1, [0, 1]), num_decodes=1)) == {"a": [1]}
    assert tokens_of(run(runner, ("a", 0, 8, [2, 3]), preempted=("a", "gone"))) == {"a": [2]}


@pytest.mark.parametrize("checks", [True, False])
def test_choices_begin_with_the_step_that_completes_the_prompt(checks: bool) -> None:
    runner = runner_of(request("r", n=4), checks=checks)
    runner.remove("r.2")

    assert tokens_of(run(runner, ("r.0", 0, 6, [0, 1]))) == {"r.0": [0], "r.1": [0], "r.3": [0]}
    rows: list[RowSpec] = [("r.0", 6, 1, [0, 1]), ("r.1", 6, 1, [0, 2]), ("r.3", 6, 1, [0, 3])]
    copied = [BlockCopy(1, 2), BlockCopy(1, 3)]
    later = tokens_of(run(runner, *rows, copied=copied, num_decodes=3))
    assert later == {"r.0": [1], "r.1": [1], "r.3": [1]}


@pytest.mark.parametrize("checks", [True, False])
def test_drafts_are_right_where_the_pattern_says_so(checks: bool) -> None:
    runner = runner_of(request("a"), right_drafts=(True, True, False), checks=checks)
    table = range(8)
    run(runner, ("a", 0, 6, table))

    # Output tokens 1 … 3 are drafted, of which 2 is wrong: it is computed itself then.
    assert tokens_of(run(runner, ("a", 6, 4, table), num_drafts={"a": 3})) == {"a": [1, 2]}
    assert tokens_of(run(runner, ("a", 8, 3, table), num_drafts={"a": 2})) == {"a": [3, 4, 5]}
    assert tokens_of(run(runner, ("a", 11, 2, table), num_drafts={"a": 1})) == {"a": [6, 7]}
    assert tokens_of(run(runner, ("a", 13, 2, table), num_drafts={"a": 1})) == {"a": [8]}
    assert tokens_of(run(runner, ("a", 14, 1, table))) == {"a": [9]}


def test_beams_get_the_same_candidates_for_the_same_tokens() -> None:
    searches = [
        runner_of(request("r", n=3, use_beam_search=True), checks=checks)
        for checks in (True, False)
    ]
    first = [run(runner, ("r.0", 0, 6, [0, 1])) for runner in searches]
    moves = {"r.0": BeamMove("r.0", 4), "r.1": BeamMove("r.0", 2)}
    rows: list[RowSpec] = [("r.0", 6, 1, [0, 1]), ("r.1", 6, 1, [0, 2])]
    second = [run(runner, *rows, beam_moves=moves, copied=[BlockCopy(1, 2)]) for runner in searches]

    assert not first[0].tokens
    assert first[0] == first[1]
    assert second[0] == second[1]
    candidates = [*first[0].candidates.values(), *second[0].candidates.values()]
    assert len(candidates) == 3
    for each in candidates:
        assert sorted(one.token_id for one in each) == list(range(6))
        assert [one.logprob for one in each] == sorted((one.logprob for one in each), reverse=True)
    assert len({tuple(each) for each in candidates}) == 3, "each beam has its own"


def test_candidates_leave_end_tokens_out_until_the_least_length() -> None:
    runner = runner_of(
        request("r", n=2, use_beam_search=True, min_tokens=1, stop_token_ids=frozenset({1, 2}))
    )
    first = run(runner, ("r.0", 0, 6, [0, 1]))
    moves = {"r.0": BeamMove("r.0", 3)}
    second = run(runner, ("r.0", 6, 1, [0, 1]), beam_moves=moves)

    assert {each.token_id for each in first.candidates["r.0"]} == {0, 3}
    assert {each.token_id for each in second.candidates["r.0"]} == {0, 1, 2, 3}


def test_a_beam_can_take_over_one_that_was_dropped() -> None:
    runner = runner_of(request("r", n=2, use_beam_search=True), request("s"))
    run(runner, ("r.0", 0, 6, [0, 1]))
    rows: list[RowSpec] = [("r.0", 6, 1, [0, 1]), ("r.1", 6, 1, [0, 2])]
    moves = {"r.0": BeamMove("r.0", 4), "r.1": BeamMove("r.0", 2)}
    run(runner, *rows, beam_moves=moves, copied=[BlockCopy(1, 2)])
    runner.remove("r.1")
    run(runner, ("s", 0, 6, [5, 6]))

    # Block 2 holds what r.1 was, and r.0 reads it as its own.
    run(runner, ("r.0", 7, 1, [0, 2]), beam_moves={"r.0": BeamMove("r.1", 1)})


@pytest.mark.parametrize("sampling", [{"n": 3}, {"n": 3, "use_beam_search": True}])
def test_nothing_is_kept_of_a_request_whose_sequences_are_removed(
    sampling: dict[str, Any],
) -> None:
    runner = runner_of(request("r", **sampling), request("s", **sampling))
    run(runner, ("r.0", 0, 6, [0, 1]))
    for name in ("r.0", "r.1", "r.2", "s.0", "unknown"):
        runner.remove(name)

    assert not runner._sequences
    assert not runner._pending_forks
    assert not runner._dropped
    assert runner._ledger is not None
    assert not runner._ledger._tables


# What it finds


def started() -> CountingRunner:
    """a and b have each computed PROMPT and one more token, in blocks 0 1 and 2 3."""
    runner = runner_of(request("a"), request("b"), request("c", (*PROMPT, 0, 1)))
    run(runner, ("a", 0, 6, [0, 1]), ("b", 0, 6, [2, 3]))
    run(runner, ("a", 6, 1, [0, 1]), ("b", 6, 1, [2, 3]))
    return runner


A, B = ("a", 7, 1, [0, 1]), ("b", 7, 1, [2, 3])

GOOD: dict[str, tuple[list[RowSpec], dict[str, Any]]] = {
    "both decode": ([A, B], {"num_decodes": 2}),
    "one decodes": ([B], {}),
    "a full block of other tokens, equal to its own": ([("c", 4, 2, [0, 5])], {}),
    "the whole prefix, after a copy": (
        [A, ("c", 7, 1, [0, 5])],
        {"copied": [BlockCopy(1, 5)]},
    ),
    "out, in and on": (
        [("a", 7, 1, [8, 9])],
        {
            "swapped_out": [BlockCopy(0, 0), BlockCopy(1, 1)],
            "swapped_in": [BlockCopy(0, 8), BlockCopy(1, 9)],
        },
    ),
    "blocks of one that was swapped out": (
        [("c", 0, 8, [1, 0])],
        {"swapped_out": [BlockCopy(0, 0), BlockCopy(1, 1)]},
    ),
    "blocks of one that was pre-empted": ([("c", 0, 8, [1, 0])], {"preempted": ("a",)}),
    "pre-empted, and half of it found again": (
        [("a", 4, 4, [2, 7])],
        {"preempted": ("a",)},
    ),
}

BAD: dict[str, tuple[list[RowSpec], dict[str, Any], str]] = {
    "unknown": ([("x", 0, 1, [9])], {}, "x was not added"),
    "twice": ([A, A], {}, "twice"),
    "nothing": ([("a", 7, 0, [0, 1])], {}, "computes nothing"),
    "a hole": ([("c", 3, 2, [5, 6])], {}, "c reads token 0 in block 5"),
    "recomputed": ([("a", 6, 2, [0, 1])], {}, "a starts at 6, but 7 tokens are computed"),
    "too far": ([("a", 7, 2, [0, 1, 5])], {}, "does not know"),
    "nothing left to know": ([("a", 8, 1, [0, 1, 5])], {}, "knows 8 tokens"),
    "no block": ([("c", 0, 8, [5])], {}, "c lacks a block"),
    "a block twice": ([("c", 0, 8, [5, 5])], {}, "has a block twice"),
    "another's block": ([("a", 7, 1, [0, 3])], {}, r"writes block 3, which \['b'\] hold too"),
    "a block that both write": (
        [A, ("c", 0, 8, [5, 1])],
        {},
        r"a writes block 1, which \['c'\] hold too",
    ),
    "a block that another one keeps for later": (
        [("c", 0, 8, [5, 1])],
        {},
        r"c writes block 1, which \['a'\] hold too",
    ),
    "a forgotten copy": ([("c", 7, 1, [0, 5])], {}, "c reads token 4 in block 5"),
    "a copy of the wrong block": (
        [("c", 7, 1, [0, 5])],
        {"copied": [BlockCopy(0, 5)]},
        "c reads token 4 in block 5",
    ),
    "a swap to the wrong block": (
        [("a", 7, 1, [8, 9])],
        {
            "swapped_out": [BlockCopy(0, 0), BlockCopy(1, 1)],
            "swapped_in": [BlockCopy(1, 8), BlockCopy(0, 9)],
        },
        "a reads token 0 in block 8",
    ),
    "two copies to one block": (
        [A],
        {"copied": [BlockCopy(0, 5)], "swapped_in": [BlockCopy(0, 5)]},
        "a KV block is the target of two copies",
    ),
    "two copies to one host block": (
        [A],
        {"swapped_out": [BlockCopy(2, 0), BlockCopy(3, 0)]},
        "a host block is the target of two copies",
    ),
    "drafts of no row": ([A], {"drafts": {"b": [1]}}, "b has drafts, but is in no row"),
    "drafts in the middle": (
        [("c", 0, 4, [5, 6])],
        {"drafts": {"c": [1, 2]}},
        "c has drafts, but known tokens are left",
    ),
    "a prompt among the decodes": (
        [("c", 0, 8, [5, 6])],
        {"num_decodes": 1},
        "c decodes, but known tokens are left",
    ),
    "more decodes than rows": ([A], {"num_decodes": 2}, "of 1 rows, 2 are to decode"),
    "a beam from nowhere": (
        [A],
        {"beam_moves": {"c": BeamMove("x", 1)}},
        "goes on from x, which is unknown",
    ),
}


@pytest.mark.parametrize(("rows", "others"), GOOD.values(), ids=GOOD)
def test_a_right_step_passes(rows: list[RowSpec], others: dict[str, Any]) -> None:
    run(started(), *rows, **others)


@pytest.mark.parametrize(("rows", "others", "message"), BAD.values(), ids=BAD)
def test_a_wrong_step_is_found(rows: list[RowSpec], others: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(started(), *rows, **others)


def test_columns_of_different_lengths_are_found() -> None:
    step = Step(sequence_ids=["a"], num_tokens=[1], starts=[7], block_tables=[])

    with pytest.raises(AssertionError, match="different lengths"):
        started().run(step)


def test_tokens_of_another_salt_are_other_tokens() -> None:
    runner = runner_of(request("a", cache_salt="x"), request("b", cache_salt="y"))
    run(runner, ("a", 0, 6, [0, 1]))

    with pytest.raises(AssertionError, match="b reads token 0 in block 0"):
        run(runner, ("b", 4, 2, [0, 3]))


def test_equal_tokens_after_others_are_other_tokens() -> None:
    prompt = (1, 2, 3, 4)
    runner = runner_of(request("a", (*prompt, *prompt)), request("b", (*prompt, *prompt)))
    run(runner, ("a", 0, 8, [0, 1]))

    with pytest.raises(AssertionError, match="b reads token 0 in block 1"):
        run(runner, ("b", 7, 1, [1, 0]), preempted=("a",))


def test_refused_drafts_do_not_count_as_computed() -> None:
    runner = runner_of(request("a"), right_drafts=(False,))
    run(runner, ("a", 0, 6, [0, 1]))
    run(runner, ("a", 6, 3, [0, 1, 2]), num_drafts={"a": 2})

    with pytest.raises(AssertionError, match="a starts at 8 and knows 8 tokens"):
        run(runner, ("a", 8, 1, [0, 1, 2]))


def test_a_block_that_only_refused_drafts_filled_may_go_to_another() -> None:
    runner = runner_of(request("a"), request("b"), right_drafts=(False,))
    run(runner, ("a", 0, 6, [0, 1]))
    run(runner, ("a", 6, 4, [0, 1, 2]), num_drafts={"a": 3})

    run(runner, ("b", 0, 6, [2, 3]))


@given(st.integers(1, 20), st.lists(st.integers(1, 7), min_size=1, max_size=20), st.booleans())
def test_any_cuts_of_a_prompt_count_the_same(
    num_prompt: int, cuts: list[int], checks: bool
) -> None:
    runner = runner_of(request("a", range(num_prompt)), checks=checks)
    start = 0
    got: list[int] = []
    for cut in [*cuts, num_prompt]:
        known = num_prompt + len(got)
        count = min(cut, known - start)
        got += tokens_of(run(runner, ("a", start, count, range(20)))).get("a", [])
        start += count

    assert got == list(range(len(got)))
    assert got
