"""The record of calls, and the sentence that two records make."""

from collections import Counter
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.errors import ConfigError
from tandem_engine.parallel.collective_record import (
    RankCalls,
    RecordedCall,
    compare,
    first_mismatch,
)
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.world import Group, WorldShape

Contents = tuple[str, str, int, str]
CONTENTS: Final = st.tuples(
    st.sampled_from(("world", "tp", "pp")),
    st.sampled_from(("all_reduce", "all_gather", "broadcast from place 0")),
    st.integers(0, 1 << 20),
    st.sampled_from(("float32", "bfloat16")),
)


def recorded(calls: list[Contents]) -> tuple[RecordedCall, ...]:
    """Calls of one rank, numbered in their groups."""
    numbers = Counter[str]()
    found = []
    for call in calls:
        numbers[call[0]] += 1
        found.append(RecordedCall(numbers[call[0]], *call))
    return tuple(found)


@given(st.lists(CONTENTS, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_ranks_that_call_alike_never_mismatch(
    calls: list[Contents], mine: int, others: int
) -> None:
    """However far each of them has come."""
    assert first_mismatch(recorded(calls[:mine]), recorded(calls[:others])) is None


@given(st.lists(CONTENTS, min_size=1, max_size=30), st.data())
def test_the_first_call_that_parts_is_found(calls: list[Contents], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(calls) - 1))
    group, operation, num_bytes, dtype = calls[at]
    others = [*calls[:at], (group, operation, num_bytes + 1, dtype), *calls[at + 1 :]]

    found = first_mismatch(recorded(calls), recorded(others))

    assert found is not None
    mine, other = found
    assert (mine.group, mine.num_bytes + 1) == (other.group, other.num_bytes)
    assert mine.number == sum(call[0] == group for call in calls[: at + 1])


@given(st.lists(CONTENTS, max_size=10), st.lists(CONTENTS, max_size=10))
def test_two_records_make_one_sentence_whatever_they_hold(
    mine: list[Contents], others: list[Contents]
) -> None:
    text = compare(RankCalls(0, recorded(mine)), RankCalls(1, recorded(others)))

    assert text.endswith(".")
    assert text[0].isupper()
    assert "ank 0 " in text or "ranks 0 and 1 " in text
    assert "ank 1 " in text


ALL_REDUCE: Final = ("tp", "all_reduce", 8192, "bfloat16")
GATHER: Final = ("world", "all_gather", 64, "float32")
SENTENCES: Final = {
    "another operation": (
        [ALL_REDUCE, ALL_REDUCE],
        [ALL_REDUCE, ("tp", "all_gather", 8192, "bfloat16")],
        "Rank 0 made call 2 of group 'tp' as all_reduce, 8192 B of bfloat16; rank 1 as all_gather, "
        "8192 B of bfloat16.",
    ),
    "one is behind": (
        [ALL_REDUCE, GATHER],
        [ALL_REDUCE],
        "Rank 0 made call 1 of group 'world' (all_gather, 64 B of float32) last; rank 1 made call "
        "1 of group 'tp' (all_reduce, 8192 B of bfloat16) last.",
    ),
    "both are there": (
        [ALL_REDUCE],
        [ALL_REDUCE, GATHER],
        "Both ranks 0 and 1 made call 1 of group 'tp' (all_reduce, 8192 B of bfloat16); rank 1 "
        "made call 1 of group 'world' (all_gather, 64 B of float32) last.",
    ),
    "one has not begun": (
        [ALL_REDUCE],
        [],
        "Rank 0 made call 1 of group 'tp' (all_reduce, 8192 B of bfloat16) last; rank 1 has made "
        "no call.",
    ),
}


@pytest.mark.parametrize(("mine", "others", "text"), SENTENCES.values(), ids=SENTENCES.keys())
def test_sentences(mine: list[Contents], others: list[Contents], text: str) -> None:
    assert compare(RankCalls(0, recorded(mine)), RankCalls(1, recorded(others))) == text


def test_an_error_tells_the_cause_once() -> None:
    own, peer = RankCalls(0, recorded([ALL_REDUCE])), RankCalls(1, recorded([GATHER]))
    ended = CollectiveError(rank=1, cause="Rank 1 (process 7) has ended.", own=own, peer=peer)
    itself = CollectiveError(rank=0, cause="Rank 0 gave up.", own=own, peer=own)
    parted = CollectiveError(rank=1, cause=compare(own, peer), own=own, peer=peer)

    assert str(ended) == f"Rank 1 (process 7) has ended. {compare(own, peer)}"
    assert str(itself) == f"Rank 0 gave up. Its last call is {own.calls[-1]}."
    assert str(parted) == compare(own, peer)


WRONG: Final = {
    "no rank": (0, (), "A world has 0 ranks; it can have 1 to 256."),
    "too many": (257, (), "A world has 257 ranks; it can have 1 to 256."),
    "no members": (2, (Group("tp", ()),), "Group 'tp' has no ranks; name one at least."),
    "not there": (2, (Group("tp", (0, 2)),), "Group 'tp' has rank 2; ranks are 0 to 1."),
    "negative": (2, (Group("tp", (-1,)),), "Group 'tp' has rank -1; ranks are 0 to 1."),
    "twice in it": (2, (Group("tp", (1, 1)),), "Rank 1 is in group 'tp' twice"),
    "in two": (3, (Group("tp", (0, 1)), Group("tp", (1, 2))), "Rank 1 is in group 'tp' twice"),
    "the name of all": (2, (Group("world", (0, 1)),), "'world' is the group of all ranks"),
}


@pytest.mark.parametrize(("size", "groups", "text"), WRONG.values(), ids=WRONG.keys())
def test_worlds_that_cannot_be(size: int, groups: tuple[Group, ...], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WorldShape(size, groups)

    assert text in str(raised.value)


def test_groups_of_a_rank() -> None:
    shape = WorldShape(4, (Group("tp", (0, 1)), Group("tp", (2, 3)), Group("pp", (3, 1))))

    assert {name: group.ranks for name, group in shape.groups_of(1).items()} == {
        "world": (0, 1, 2, 3),
        "tp": (0, 1),
        "pp": (3, 1),
    }
    assert list(shape.groups_of(0)) == ["world", "tp"]
