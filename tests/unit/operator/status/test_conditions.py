"""Conditions: when they change, and when they do not."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.k8s.messages import MAX_CONDITION_MESSAGE
from tandem_operator.status.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    find_condition,
    merge_conditions,
)
from tests.unit.operator.samples import T0, T1

conditions = st.lists(
    st.builds(
        Condition,
        st.sampled_from(ConditionType),
        st.sampled_from(ConditionStatus),
        st.sampled_from(["Loading", "Loaded"]),
        st.text(max_size=20),
    ),
    unique_by=lambda one: one.type,
)


def merged(
    previous: list[dict[str, Any]], current: list[Condition], now: str
) -> list[dict[str, Any]]:
    return merge_conditions(previous, current, generation=3, now=now)


@given(conditions)
def test_saying_the_same_again_changes_nothing(current: list[Condition]) -> None:
    first = merged([], current, T0)

    assert merged(first, current, T1) == first


@given(conditions, conditions)
def test_the_time_moves_when_the_status_does_and_only_then(
    before: list[Condition], after: list[Condition]
) -> None:
    old = {one["type"]: one for one in merged([], before, T0)}

    for new in merged(list(old.values()), after, T1):
        is_same = new["type"] in old and old[new["type"]]["status"] == new["status"]
        assert new["lastTransitionTime"] == (T0 if is_same else T1)


def test_every_condition_says_of_which_generation_it_speaks() -> None:
    (written,) = merged(
        [], [Condition(ConditionType.READY, ConditionStatus.TRUE, "Serving", "it serves")], T0
    )

    assert written == {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": T0,
        "reason": "Serving",
        "message": "it serves",
    }


def test_a_message_of_pages_is_cut() -> None:
    (written,) = merged(
        [], [Condition(ConditionType.READY, ConditionStatus.FALSE, "Long", "x" * 99_999)], T0
    )

    assert len(written["message"]) == MAX_CONDITION_MESSAGE
    assert written["message"].endswith("…")


def test_a_condition_that_is_not_there_is_empty() -> None:
    assert find_condition({}, "Ready") == {}
