"""Stop strings in a growing text, against a search that knows the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.api.output import FinishReason, Output
from tandem_engine.api.request import (
    MAX_STOP_CHARACTERS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    Request,
    SamplingParams,
)
from tandem_engine.api.step import Advance, SampledToken
from tandem_engine.async_engine.choice import choices_of
from tandem_engine.async_engine.stream import RequestStream
from tandem_engine.text.stop_strings import StopAutomaton, StopStrings, automaton_of
from tests.unit.engine.test_text import CODEC

stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)
piece_lists = st.lists(st.text("abc", max_size=5), max_size=15)
many_stops = st.lists(st.text("abc", min_size=1, max_size=8), max_size=12)


@given(st.lists(st.text("ab", max_size=3), max_size=15), stop_lists)
def test_nothing_of_a_stop_string_is_shown(pieces: list[str], stops: list[str]) -> None:
    finder = StopStrings(StopAutomaton(stops))
    shown, met = "", False
    for piece in pieces:
        text, met = finder.push(piece)
        shown += text
        if met:
            break
    whole = "".join(pieces)
    ends = [whole.find(stop) for stop in stops if stop in whole]

    assert met == bool(ends)
    if not met:
        assert shown + finder.flush() == whole
        assert not any(stop in shown for stop in stops)
    else:
        assert whole.startswith(shown)
        assert not any(stop in shown for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["Hel", "lo ST", "OP you"], ["STOP"], ["Hel", "lo ", ""]),
        (["no", " S", "ound"], ["STOP"], ["no", " ", "Sound"]),
        (["a\n", "\nb"], ["\n\n"], ["a", ""]),
    ],
)
def test_what_may_become_a_stop_string_is_held_back(
    pieces: list[str], stops: list[str], shown: list[str]
) -> None:
    finder = StopStrings(StopAutomaton(stops))

    assert [finder.push(piece)[0] for piece in pieces] == shown


def read(automaton: StopAutomaton, pieces: Sequence[str], num_ignored: int = 0) -> tuple[str, bool]:
    """The text that is shown of pieces in all, and true if a stop string ended it."""
    finder, shown = StopStrings(automaton), ""
    for number, piece in enumerate(pieces, 1):
        text, met = finder.push(piece, may_end=number > num_ignored)
        shown += text
        if met:
            return shown, True
    return shown + finder.flush(), False


def first_stop(text: str, stops: Sequence[str], after: int) -> tuple[str, bool]:
    """The naive search: the first position beyond `after` where one ends; the longest that does."""
    for end in range(after + 1, len(text) + 1):
        ending = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


@given(piece_lists, many_stops, st.integers(0, 15))
def test_any_pieces_give_what_a_search_in_the_whole_text_gives(
    pieces: list[str], stops: list[str], num_ignored: int
) -> None:
    after = len("".join(pieces[:num_ignored]))

    got = read(StopAutomaton(stops), pieces, num_ignored)

    assert got == first_stop("".join(pieces), stops, after)


@given(st.lists(piece_lists, max_size=4), many_stops)
def test_choices_that_share_an_automaton_do_not_disturb_each_other(
    outputs: list[list[str]], stops: list[str]
) -> None:
    automaton = StopAutomaton(stops)
    finders = [StopStrings(automaton) for _ in outputs]
    shown = [""] * len(outputs)
    ended = [False] * len(outputs)
    for turn in range(15):  # a piece of each in turn
        for at, pieces in enumerate(outputs):
            if turn < len(pieces) and not ended[at]:
                text, ended[at] = finders[at].push(pieces[turn])
                shown[at] += text
    texts = [
        part if met else part + finder.flush()
        for part, met, finder in zip(shown, ended, finders, strict=True)
    ]

    assert list(zip(texts, ended, strict=True)) == [
        first_stop("".join(pieces), stops, 0) for pieces in outputs
    ]


@given(piece_lists, many_stops)
def test_no_more_is_held_back_than_may_become_a_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    finder, text, shown = StopStrings(StopAutomaton(stops)), "", ""
    for piece in pieces:
        more, met = finder.push(piece)
        text, shown = text + piece, shown + more
        if met:
            break
        ends = [text[at:] for at in range(len(text) + 1)]
        longest = next(end for end in ends if any(_begins(end, stop) for stop in ["x", *stops]))
        assert shown == text.removesuffix(longest)


def _begins(end: str, stop: str) -> bool:
    return stop.startswith(end) and stop != end


def test_a_state_comes_into_being_where_a_text_leads() -> None:
    automaton = StopAutomaton(["a" * 1000, "b" * 1000])
    finder = StopStrings(automaton)
    finder.push("aaa")

    assert not automaton.root.children.get("b")
    assert _num_states(automaton) == 4


def test_requests_with_the_same_stop_strings_share_an_automaton() -> None:
    sampling = [SamplingParams(max_tokens=1, stop=("\n", str(end))) for end in (1, 1, 2)]
    first, same, other = (
        choices_of(
            Request(request_id="r", prompt_token_ids=(1,), sampling=each, max_new_tokens=1),
            count=1,
            stream=RequestStream(1, abort=lambda: None),
            codec=CODEC,
        )
        for each in sampling
    )

    assert first[0]._stops._automaton is same[0]._stops._automaton
    assert first[0]._stops._automaton is not other[0]._stops._automaton


def test_an_automaton_that_no_request_uses_is_forgotten() -> None:
    finder = StopStrings(automaton_of(("abc",)))
    finder.push("ab")
    assert _num_states(automaton_of(("abc",))) == 3

    del finder

    assert _num_states(automaton_of(("abc",))) == 1


def _num_states(automaton: StopAutomaton) -> int:
    states, count = [automaton.root], 0
    while states:
        count += 1
        states += states.pop().children.values()
    return count


def test_the_longest_stop_strings_need_no_deep_recursion() -> None:
    stops = ["a" * length + "b" for length in range(250)]
    finder = StopStrings(StopAutomaton(stops))

    assert finder.push("a" * 5000) == ("a" * (5000 - 249), False)
    assert finder.push("b") == ("", True)


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (("x",) * (MAX_STOP_STRINGS + 1), "1025 strings; it must have at most 1024"),
        (("x", ""), r'stop\[1\] is ""; it must have 1 to 1024 characters'),
        (
            ("x" * (MAX_STOP_LENGTH + 1),),
            r"stop\[0\] has 1025 characters; it must have at most 1024",
        ),
        (("x" * MAX_STOP_LENGTH,) * 33, "at most 32768"),
    ],
    ids=["too many", "an empty one", "too long", "too long together"],
)
def test_stop_strings_have_limits(stop: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words) as refused:
        SamplingParams(max_tokens=1, stop=stop)
    assert refused.value.parameter == "stop"
    assert len(str(refused.value)) < 250


def test_as_many_and_as_long_stop_strings_as_are_allowed_are_taken() -> None:
    most = MAX_STOP_CHARACTERS // MAX_STOP_STRINGS

    SamplingParams(max_tokens=1, stop=("x" * most,) * MAX_STOP_STRINGS)
    SamplingParams(max_tokens=1, stop=("x" * MAX_STOP_LENGTH,) * 32)


def outputs_of(text: str, *, stop: tuple[str, ...], min_tokens: int) -> list[Output]:
    """The output of a choice whose tokens are the bytes of `text`, up to a stop string."""
    sampling = SamplingParams(max_tokens=len(text), min_tokens=min_tokens, stop=stop)
    request = Request(
        request_id="r", prompt_token_ids=(0,), sampling=sampling, max_new_tokens=len(text)
    )
    stream = RequestStream(1, abort=lambda: None)
    [choice] = choices_of(request, count=1, stream=stream, codec=CODEC)
    outputs: list[Output] = []
    for number, token_id in enumerate(text.encode(), 1):
        reason: FinishReason | None = "length" if number == len(text) else None
        tokens = (SampledToken(token_id),)
        outputs.append(choice.output(Advance("r", tokens, finish_reason=reason)))
        if outputs[-1].finish_reason is not None:
            break
    return outputs


@pytest.mark.parametrize(
    ("min_tokens", "text", "reason", "num_tokens"),
    [
        (0, "a", "stop", 4),
        (3, "a", "stop", 4),
        (4, "aENDb", "stop", 8),
        (7, "aENDb", "stop", 8),
        (8, "aENDbENDc", "length", 9),
        (9, "aENDbENDc", "length", 9),
    ],
)
def test_a_stop_string_that_ends_within_min_tokens_does_not_count(
    min_tokens: int, text: str, reason: str, num_tokens: int
) -> None:
    outputs = outputs_of("aENDbENDc", stop=("END",), min_tokens=min_tokens)

    assert "".join(output.text for output in outputs) == text
    assert outputs[-1].finish_reason == reason
    assert len(outputs) == num_tokens
