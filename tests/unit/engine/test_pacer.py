"""bufferResponseEnabled: when outputs go out, worked out by hand."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import FinishReason, Output
from tandem_engine.async_engine.pacer import Pacer

# 0.95 · 1000 ms to the first output, 0.95 · 100 ms between further ones.
ON = ScheduleConfig(
    buffer_response_enabled=True, prefill_expected_time=1000, decode_expected_time=100
)
OFF = ScheduleConfig()


def output(finish_reason: FinishReason | None = None) -> Output:
    return Output(index=0, text="a", token_ids=(1,), finish_reason=finish_reason)


def push(
    pacer: Pacer[str], item: str, now: float, *, name: str = "r", last: bool = False
) -> list[str]:
    expected = output("length" if last else None)
    return pacer.push(name, item, expected, arrived=10.0, now=now)


def test_off_it_hands_everything_out_at_once() -> None:
    pacer = Pacer[str](OFF)

    assert push(pacer, "a", 10.0) == ["a"]
    assert push(pacer, "b", 10.0) == ["b"]
    assert (pacer.next_due(), pacer.due(99.0)) == (inf, [])


def test_the_first_output_is_held_until_shortly_before_its_expected_time() -> None:
    pacer = Pacer[str](ON)

    assert push(pacer, "a", 10.25) == []
    assert pacer.next_due() == pytest.approx(10.95)
    assert pacer.due(10.9) == []
    assert pacer.due(10.96) == ["a"]
    assert pacer.next_due() == inf


def test_one_that_is_late_goes_out_at_once() -> None:
    assert push(Pacer[str](ON), "a", 11.0) == ["a"]


def test_further_ones_are_counted_from_the_one_before() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 11.0)

    assert push(pacer, "b", 11.01) == []
    assert push(pacer, "c", 11.02) == []
    assert pacer.next_due() == pytest.approx(11.095)
    assert pacer.due(11.1) == ["b"], "c is due 95 ms after b went out"
    assert pacer.next_due() == pytest.approx(11.195)
    assert pacer.due(11.2) == ["c"]


def test_the_last_one_takes_all_with_it() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 10.1)
    push(pacer, "b", 10.2)

    assert push(pacer, "c", 10.3, last=True) == ["a", "b", "c"]
    assert (pacer.next_due(), pacer.due(99.0)) == (inf, [])


def test_so_does_a_failure() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 10.1)

    assert pacer.push("r", "failure", None, arrived=10.0, now=10.2) == ["a", "failure"]


def test_choices_are_paced_apart() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 11.0, name="x")
    push(pacer, "b", 11.05, name="x")
    push(pacer, "c", 10.5, name="y")

    assert pacer.next_due() == pytest.approx(10.95)
    assert pacer.due(11.0) == ["c"]
    assert pacer.due(11.1) == ["b"]


def test_a_stream_without_a_reader_is_forgotten() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 10.1)
    pacer.drop("r")
    pacer.drop("unknown")

    assert (pacer.next_due(), pacer.due(99.0)) == (inf, [])


def test_switched_off_live_it_lets_go_of_all_that_it_holds() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 10.1)
    push(pacer, "b", 10.2)
    pacer.schedule = OFF

    assert pacer.next_due() <= 10.3
    assert pacer.due(10.3) == ["a", "b"]
    assert push(pacer, "c", 10.4) == ["c"]


def test_switched_on_live_it_goes_on_from_the_last_output() -> None:
    pacer = Pacer[str](OFF)
    push(pacer, "a", 10.1)
    pacer.schedule = ON

    assert push(pacer, "b", 10.11) == []
    assert pacer.next_due() == pytest.approx(10.195)


@given(st.lists(st.tuples(st.sampled_from(["push", "due"]), st.floats(0.0, 0.4)), max_size=40))
def test_everything_goes_out_once_in_order_and_never_too_close(
    actions: list[tuple[str, float]],
) -> None:
    pacer = Pacer[int](ON)
    now, pushed = 10.0, 0
    gone: list[tuple[int, float]] = []
    for action, wait in actions:
        now += wait
        if action == "push":
            items = pacer.push("r", pushed, output(), arrived=10.0, now=now)
            pushed += 1
        else:
            items = pacer.due(now)
        gone += [(each, now) for each in items]
    held = pacer.push("r", pushed, output("stop"), arrived=10.0, now=now)

    assert [each for each, _ in gone] + held == list(range(pushed + 1))
    moments = [moment for _, moment in gone]
    assert all(moment >= 10.95 - 1e-9 for moment in moments)
    gaps = [after - before for before, after in pairwise(moments)]
    assert all(gap >= 0.095 - 1e-9 for gap in gaps)


def test_all_that_is_held_goes_out_when_nothing_more_will_come() -> None:
    pacer = Pacer[str](ON)
    push(pacer, "a", 10.1)
    push(pacer, "b", 10.2, name="s")

    assert pacer.flush() == ["a", "b"]
    assert (pacer.next_due(), pacer.due(99.0)) == (inf, [])
