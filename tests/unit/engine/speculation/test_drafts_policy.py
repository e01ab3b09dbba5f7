"""When drafts pay: by what was accepted, by what a token costs, and by what steps took."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.drafts import DraftMethod
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import Coefficients, StepTimeModel
from tandem_engine.scheduler.policies.drafts import (
    Acceptance,
    AllDrafts,
    Checked,
    CheckedDrafts,
    PayingDrafts,
    Room,
)
from tandem_engine.scheduler.policies.drafts.draft_gate import FIRST_TRIAL, WINDOW

MOST = 4
MEMORY_BOUND = Coefficients(
    base=20e-3, token=2e-4, chunk_context=1e-9, decode_context=1e-9, row=1e-6
)
"""A step is as long as reading the weights; checking a token costs a hundredth of it."""


def load(num_rows: int) -> StepLoad:
    return StepLoad(num_tokens=num_rows, num_rows=num_rows, chunk_context=0, decode_context=0)


class Bench:
    """A policy with what it learns from."""

    def __init__(self, *methods: DraftMethod) -> None:
        self.acceptance = Acceptance()
        methods = methods or ("ngram",)
        self.policy = PayingDrafts(methods, StepTimeModel(MEMORY_BOUND), self.acceptance)

    def counts(self, num_rows: int, *names: str) -> dict[DraftMethod, dict[str, int]]:
        room = dict.fromkeys(names or ("a",), MOST)
        limits = self.policy.limits(load(num_rows), Room(room, room))
        self.policy.count_step()
        return {"ngram": dict(limits.ngram), "draft": dict(limits.draft)}

    def check(
        self,
        num_rows: int,
        seconds: float,
        *,
        drafted: int,
        accepted: int,
        method: DraftMethod = "ngram",
        drafting_s: float = 0.0,
        has_chunks: bool = False,
        has_caught_up: bool = False,
    ) -> None:
        self.acceptance.add(method, "a", drafted, accepted)
        self.policy.learn(
            CheckedDrafts(
                load=load(num_rows),
                has_chunks=has_chunks,
                seconds=seconds,
                drafting_s=drafting_s,
                num_passes=drafted if method == "draft" else 0,
                has_caught_up=has_caught_up,
                rows={"a": Checked(method, drafted, accepted)},
            )
        )


def test_a_method_that_is_asked_for_drafts_for_all() -> None:
    room = {"a": 7, "b": 1}
    both = Room(room, room)

    looked_up = AllDrafts(SpeculationConfig(method="ngram").methods).limits(load(2), both)
    only: tuple[DraftMethod, ...] = ("draft",)
    computed = AllDrafts(only).limits(load(2), both)

    assert (looked_up.ngram, looked_up.draft) == (room, {})
    assert (computed.ngram, computed.draft) == ({}, room)


def test_one_row_has_drafts_and_many_have_none() -> None:
    counts = {}
    for num_rows in (1, 4, 16, 64, 256):
        counts[num_rows] = Bench().counts(num_rows)["ngram"].get("a", 0)

    assert counts[1] == MOST
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert counts[256] == 0


def test_what_was_refused_has_fewer_drafts() -> None:
    bench = Bench()
    before = bench.counts(16)["ngram"]["a"]
    for _ in range(6):
        bench.check(16, 20e-3, drafted=4, accepted=0)
    after = bench.counts(16, "a", "b")["ngram"]

    assert after.get("a", 0) < before
    assert after.get("a", 0) <= after.get("b", 0) <= before
    bench.acceptance.forget(["a"])
    assert len(set(bench.counts(16, "a", "b")["ngram"].values())) <= 1


def test_steps_that_take_longer_than_they_bring_turn_drafts_off_for_a_while() -> None:
    bench = Bench()
    for _ in range(WINDOW):
        bench.counts(1)
        if not bench.policy.is_open("ngram"):
            break
        bench.check(1, 80e-3, drafted=4, accepted=1)
    assert not bench.policy.is_open("ngram")
    assert not bench.policy.limits(load(1), Room({"a": 1}, {}))

    waited: list[int] = []
    for _ in range(2):
        count = 0
        while not bench.policy.is_open("ngram"):
            bench.counts(1)
            count += 1
        waited.append(count)
        for _ in range(WINDOW):
            bench.check(1, 80e-3, drafted=4, accepted=1)

    assert waited[0] < FIRST_TRIAL
    assert waited[1] > waited[0]


def test_steps_that_pay_keep_drafts_on() -> None:
    bench = Bench()
    for _ in range(10 * WINDOW):
        bench.counts(1)
        bench.check(1, 22e-3, drafted=4, accepted=3)

    assert bench.policy.is_open("ngram")
    assert bench.counts(1)["ngram"] == {"a": MOST}


def test_steps_with_prompts_say_nothing_of_the_time() -> None:
    bench = Bench()
    for _ in range(10 * WINDOW):
        bench.check(1, 1.0, drafted=4, accepted=1, has_chunks=True)

    assert bench.policy.is_open("ngram")


# The draft model


def test_passes_of_a_draft_model_are_as_many_as_bring_more_than_they_take() -> None:
    dear, cheap = Bench("draft"), Bench("draft")
    for _ in range(40):
        dear.check(1, 21e-3, drafted=4, accepted=3, method="draft", drafting_s=4 * 12e-3)
        cheap.check(1, 21e-3, drafted=4, accepted=3, method="draft", drafting_s=4 * 0.5e-3)

    assert cheap.counts(1)["draft"] == {"a": MOST}
    assert dear.counts(1)["draft"].get("a", 0) < MOST


def test_drafts_that_take_longer_than_they_bring_turn_their_method_off_alone() -> None:
    bench = Bench("ngram", "draft")
    for _ in range(WINDOW):
        bench.check(1, 21e-3, drafted=4, accepted=3, method="ngram")
        bench.check(1, 21e-3, drafted=4, accepted=1, method="draft", drafting_s=60e-3)

    assert bench.policy.is_open("ngram")
    assert not bench.policy.is_open("draft")
    assert bench.counts(1) == {"ngram": {"a": MOST}, "draft": {}}


def test_the_surer_method_is_asked() -> None:
    bench = Bench("ngram", "draft")
    for _ in range(20):
        bench.check(1, 21e-3, drafted=4, accepted=0, method="ngram")
        bench.check(1, 21e-3, drafted=4, accepted=4, method="draft", drafting_s=1e-3)
    assert bench.counts(1) == {"ngram": {}, "draft": {"a": MOST}}

    for _ in range(40):
        bench.check(1, 21e-3, drafted=4, accepted=4, method="ngram")
        bench.check(1, 21e-3, drafted=4, accepted=2, method="draft", drafting_s=1e-3)

    # The draft model still guesses where no text has a guess.
    assert bench.counts(1)["ngram"] == {"a": MOST}
    assert bench.counts(1)["draft"]


def test_a_pass_that_catches_up_is_not_taken_for_a_usual_one() -> None:
    bench = Bench("draft")
    bench.check(
        1, 21e-3, drafted=4, accepted=4, method="draft", drafting_s=120e-3, has_caught_up=True
    )

    assert bench.counts(1)["draft"] == {"a": MOST}


def test_a_draft_model_that_erred_is_tried_again() -> None:
    bench = Bench("draft")
    for _ in range(12):
        bench.check(1, 21e-3, drafted=4, accepted=0, method="draft", drafting_s=4 * 6e-3)
    waited = []
    for accepted in (0, 0, 1, 1, 1, 1, 1, 1, 1, 1):
        count = 1
        while not bench.counts(1)["draft"]:
            count += 1
        waited.append(count)
        bench.check(1, 21e-3, drafted=1, accepted=accepted, method="draft", drafting_s=2e-3)

    # Fewer steps than one in fifty are trials; once it is right, it is asked again.
    assert waited[:2] == sorted(waited[:2])
    assert min(waited[:2]) > 50
    assert bench.counts(1)["draft"] == {"a": MOST}


@given(
    st.lists(
        st.tuples(
            st.integers(1, 64),
            st.floats(1e-3, 1.0),
            st.integers(1, 4),
            st.integers(0, 4),
            st.sampled_from(["ngram", "draft"]),
            st.floats(0.0, 1.0),
        ),
        max_size=200,
    )
)
def test_any_course_gives_counts_within_the_setting(
    course: list[tuple[int, float, int, int, DraftMethod, float]],
) -> None:
    bench = Bench("ngram", "draft")
    for num_rows, seconds, drafted, accepted, method, drafting_s in course:
        for counts in bench.counts(num_rows, "a", "b").values():
            assert all(1 <= count <= MOST for count in counts.values())
        bench.check(
            num_rows,
            seconds,
            drafted=drafted,
            accepted=min(drafted, accepted),
            method=method,
            drafting_s=drafting_s,
        )
        assert 0.0 <= bench.acceptance.expected(method, "a", MOST) <= MOST


# The settings


@pytest.mark.parametrize("count", [0, 17])
def test_the_number_has_a_range(count: int) -> None:
    with pytest.raises(ValueError, match="max_draft_tokens"):
        SpeculationConfig(method="ngram", max_draft_tokens=count)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"method": "draft"}, "method draft needs draftPath"),
        ({"method": "ngram", "draft_path": "/m"}, "draftPath is the model of method draft or auto"),
        ({"method": "none", "draft_path": "/m"}, "not of none"),
    ],
)
def test_a_draft_model_goes_with_its_methods(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SpeculationConfig(**settings)
