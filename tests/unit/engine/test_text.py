"""Incremental decoding and stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.text.chat_template import ChatTemplate
from tandem_engine.text.codec import CheckpointCodec, _byte_of_symbol
from tandem_engine.text.detokenizer import Detokenizer, StopStrings


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=_byte_of_symbol(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()
CODEC = CheckpointCodec(TOKENIZER, ChatTemplate("{{ messages[0].content }}", {}))


@given(st.text())
def test_pieces_add_up_to_the_text_and_are_whole_characters(text: str) -> None:
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=True)
    pieces = [detokenizer.push(byte) for byte in text.encode()]

    assert "".join(pieces) + detokenizer.flush() == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_come_out_as_a_plain_decode_has_them(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=True)
    text = "".join(detokenizer.push(token) for token in ids) + detokenizer.flush()

    assert text == TOKENIZER.decode(ids)


texts = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(st.lists(st.text("ab", max_size=3), max_size=15), stop_lists)
def test_nothing_of_a_stop_string_is_shown(pieces: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
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
    finder = StopStrings(stops)

    assert [finder.push(piece)[0] for piece in pieces] == shown


def test_a_token_is_known_by_its_bytes() -> None:
    assert CODEC.token_bytes(0xE4) == b"\xe4"
    assert CODEC.token_text(0xE4) == "\ufffd"
    assert CODEC.token_text(ord("a")) == "a"


def test_a_chat_template_speaks_to_the_caller() -> None:
    strict = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})

    with pytest.raises(InvalidParameter, match="roles must alternate") as refused:
        strict.render([], add_generation_prompt=True)
    assert refused.value.parameter == "messages"


def test_a_chat_template_may_not_reach_outside_its_sandbox() -> None:
    escape = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})

    with pytest.raises(InvalidParameter, match="unsafe"):
        escape.render([], add_generation_prompt=True)


def test_json_in_a_template_is_not_escaped_for_html() -> None:
    template = ChatTemplate("{{ messages[0] | tojson }}", {})

    assert template.render([{"a": "<é>"}], add_generation_prompt=False) == '{"a": "<é>"}'
