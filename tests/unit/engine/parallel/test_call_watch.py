"""Calls that do not end are found, and only these."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.parallel.call_watch import CallMarks


@dataclass
class FakeCall:
    """A call that ends when it is told to."""

    has_ended: bool = False

    def is_completed(self) -> bool:
        return self.has_ended


def test_a_call_is_waited_for_from_when_it_was_seen() -> None:
    marks, call = CallMarks(), FakeCall()

    assert marks.waiting_s({"tp": call}, 10.0) == (0.0, "tp")
    assert marks.waiting_s({"tp": call}, 13.0) == (3.0, "tp")
    call.has_ended = True
    assert marks.waiting_s({"tp": call}, 14.0) == (0.0, "")


def test_newer_calls_do_not_hide_one_that_hangs() -> None:
    marks, first = CallMarks(), FakeCall()
    marks.waiting_s({"tp": first}, 0.0)

    assert marks.waiting_s({"tp": FakeCall()}, 5.0) == (5.0, "tp")
    first.has_ended = True
    assert marks.waiting_s({"tp": FakeCall()}, 6.0) == (0.0, "tp")


def test_the_group_that_waits_longest_is_named() -> None:
    marks, early, late = CallMarks(), FakeCall(), FakeCall()
    marks.waiting_s({"pp": early}, 0.0)
    marks.waiting_s({"pp": early, "tp": late}, 2.0)

    assert marks.waiting_s({"pp": early, "tp": late}, 3.0) == (3.0, "pp")
    early.has_ended = True
    assert marks.waiting_s({"pp": early, "tp": late}, 4.0) == (2.0, "tp")


def test_a_group_that_was_left_is_still_waited_for() -> None:
    marks, call = CallMarks(), FakeCall()
    marks.waiting_s({"tp": call}, 0.0)

    assert marks.waiting_s({}, 4.0) == (4.0, "tp")


@given(st.lists(st.floats(0.1, 3.0), min_size=1, max_size=30))
def test_as_long_as_calls_end_none_is_waited_for_longer_than_between_two_looks(
    gaps: list[float],
) -> None:
    marks, now, call = CallMarks(), 0.0, FakeCall()
    for gap in gaps:
        waited_s, _ = marks.waiting_s({"tp": call}, now)
        assert waited_s <= 3.0
        call.has_ended, call, now = True, FakeCall(), now + gap
