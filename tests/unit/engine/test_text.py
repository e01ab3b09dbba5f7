"""Incremental decoding of byte-level BPE, and the sandbox of chat templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.text.chat_template import ChatTemplate
from tandem_engine.text.chat_templates import ChatTemplates
from tandem_engine.text.codec import CheckpointCodec
from tandem_engine.text.detokenizer import Detokenizer
from tandem_engine.text.vocabulary import byte_of_symbol


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=byte_of_symbol(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()
CODEC = CheckpointCodec(TOKENIZER, ChatTemplates(ChatTemplate("{{ messages[0].content }}", {})))


def detokenizer_of() -> Detokenizer:
    return CODEC.context((), skip_special_tokens=True).detokenizer()


@given(st.text())
def test_pieces_add_up_to_the_text_and_are_whole_characters(text: str) -> None:
    detokenizer = detokenizer_of()
    pieces = [detokenizer.push(byte) for byte in text.encode()]

    assert "".join(pieces) + detokenizer.flush() == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_come_out_as_a_plain_decode_has_them(ids: list[int]) -> None:
    detokenizer = detokenizer_of()
    text = "".join(detokenizer.push(token) for token in ids) + detokenizer.flush()

    assert text == TOKENIZER.decode(ids)


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
