"""Decoding one token at a time, against the whole decode of transformers."""

import itertools
import random
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Advance, SampledToken
from tandem_engine.async_engine.choice import choices_of
from tandem_engine.async_engine.stream import RequestStream
from tandem_engine.text.codec import CheckpointCodec
from tandem_engine.text.detokenizer import Detokenizer
from tests.unit.engine.tokenizers_of_models import KINDS, OTHER_KINDS

TOKENIZERS: dict[str, Tokenizer] = {name: make() for name, make in {**KINDS, **OTHER_KINDS}.items()}
FAST: Any = import_module("transformers").PreTrainedTokenizerFast
REFERENCES = {
    name: FAST(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    for name, tokenizer in TOKENIZERS.items()
}
CODECS = {name: CheckpointCodec(tokenizer, None) for name, tokenizer in TOKENIZERS.items()}


def token(name: str, symbol: str) -> int:
    found = TOKENIZERS[name].token_to_id(symbol)
    assert found is not None, symbol
    return found


BYTES_OF = {
    name: {int(symbol[3:5], 16): token(name, symbol) for symbol in symbols}
    for name in TOKENIZERS
    if (symbols := [s for s in TOKENIZERS[name].get_vocab() if s.startswith("<0x")])
}


def whole(name: str, ids: Sequence[int], *, skips: bool = True) -> str:
    return str(REFERENCES[name].decode(list(ids), skip_special_tokens=skips))


def detokenizer(name: str, prompt: Sequence[int] = (), *, skips: bool = True) -> Detokenizer:
    return CODECS[name].context(prompt, skip_special_tokens=skips).detokenizer()


def shown(name: str, prompt: Sequence[int], ids: Iterable[int], *, skips: bool = True) -> str:
    one = detokenizer(name, prompt, skips=skips)
    return "".join([one.push(token_id) for token_id in ids]) + one.flush()


def runs_of_bytes_are_whole_or_nothing(name: str, ids: Sequence[int], *, skips: bool) -> bool:
    """True if no run of byte tokens has both characters and bytes that are none.

    Of such a run transformers shows no character at all; a stream has shown them already.
    """
    byte_of = {token_id: byte for byte, token_id in BYTES_OF.get(name, {}).items()}
    added = TOKENIZERS[name].get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special and skips}
    size = TOKENIZERS[name].get_vocab_size()
    kept = [token_id for token_id in ids if token_id < size and token_id not in special]
    for is_byte, run in itertools.groupby(kept, byte_of.__contains__):
        data = bytes(byte_of[token_id] for token_id in run) if is_byte else b""
        try:
            data.decode()
        except UnicodeDecodeError:
            if data.decode(errors="ignore"):
                return False
    return True


def random_ids(chance: random.Random, name: str, count: int) -> list[int]:
    """Ids of any token; those of bytes seldom alone, and else as whole characters."""
    bytes_of = BYTES_OF.get(name, {})
    # Two of them are no tokens.
    others = sorted({*range(TOKENIZERS[name].get_vocab_size() + 2)} - {*bytes_of.values()})
    ids: list[int] = []
    while len(ids) < count:
        dice = chance.random()
        if bytes_of and dice < 0.2:
            ids += [bytes_of[byte] for byte in chance.choice("aé€😀\n").encode()]
        else:
            ids.append(chance.choice([*bytes_of.values()] if bytes_of and dice < 0.3 else others))
    return ids[:count]


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_random_tokens_one_at_a_time_give_the_text_of_transformers(name: str, skips: bool) -> None:
    chance, compared = random.Random(7), 0
    for _ in range(1500):
        prompt = random_ids(chance, name, chance.randrange(4))
        ids = random_ids(chance, name, chance.randrange(8))
        before, all_of_it = whole(name, prompt, skips=skips), whole(name, prompt + ids, skips=skips)
        if not runs_of_bytes_are_whole_or_nothing(name, prompt + ids, skips=skips):
            assert shown(name, prompt, ids, skips=skips) is not None  # it does not raise
        elif all_of_it.startswith(before):
            compared += 1
            rest = all_of_it.removeprefix(before)
            assert shown(name, prompt, ids, skips=skips) == rest, (prompt, ids)

    assert compared > 1000


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_decoders_of_other_kinds_see_the_tokens_before(name: str) -> None:
    chance = random.Random(7)
    size = TOKENIZERS[name].get_vocab_size()
    bytes_ = set(BYTES_OF.get(name, {}).values())
    texts = [token_id for token_id in range(size) if token_id not in bytes_]
    for _ in range(1000):
        prompt, ids = chance.choices(texts, k=3), chance.choices(texts, k=6)
        rest = whole(name, prompt + ids).removeprefix(whole(name, prompt))
        assert shown(name, prompt, ids) == rest, (prompt, ids)


@pytest.mark.parametrize("name", [name for name in KINDS if name in BYTES_OF])
@given(data=st.binary(max_size=24))
def test_no_bytes_are_an_error_and_no_character_is_lost(name: str, data: bytes) -> None:
    ids = [BYTES_OF[name][byte] for byte in data]

    text = shown(name, [token(name, "x")], ids)

    good = data.decode(errors="ignore")
    assert [char for char in text if char != "\ufffd"] == list(good)


@pytest.mark.parametrize("name", ["Llama 2", "Mistral", "T5"])
def test_a_completion_begins_with_its_space(name: str) -> None:
    prompt = TOKENIZERS[name].encode("Hello").ids
    world = token(name, "\u2581world")

    assert shown(name, prompt, [world]) == " world"
    assert shown(name, [], [world]) == "world", "a text begins without it"


def test_all_choices_of_a_request_go_on_from_its_prompt() -> None:
    prompt = tuple(TOKENIZERS["Llama 2"].encode("Hello").ids)
    request = Request(
        request_id="r",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=2, n=2),
        max_new_tokens=2,
        sequence_ids=("r-0", "r-1"),
    )
    stream = RequestStream(2, abort=lambda: None)
    choices = choices_of(request, count=2, stream=stream, codec=CODECS["Llama 2"])
    tokens = (SampledToken(token("Llama 2", "\u2581world")),)

    texts = [choice.output(Advance(choice.sequence_id, tokens)).text for choice in choices]

    assert texts == [" world", " world"]


def test_no_more_of_a_long_prompt_is_read_than_its_end() -> None:
    class Counted(tuple[int, ...]):
        __slots__ = ()
        num_read = 0

        def __getitem__(self, index: Any) -> Any:
            part = super().__getitem__(index)
            Counted.num_read += len(part)
            return part

    prompt = Counted([1] * 100_000)

    detokenizer("Llama 2", prompt)

    assert 0 < Counted.num_read <= 2000


def test_a_prompt_of_special_tokens_alone_is_no_text() -> None:
    start, cat = 1, token("Llama 2", "\u2581cat")

    assert shown("Llama 2", [start], [cat]) == "cat"
    assert shown("Llama 2", [start], [cat], skips=False) == " cat"


@pytest.mark.parametrize("name", ["Llama 2", "Gemma"])
def test_an_output_ends_the_character_that_the_prompt_began(name: str) -> None:
    first, *others = (BYTES_OF[name][byte] for byte in "😀".encode())
    letter = token(name, "x")

    assert shown(name, [letter, first], others) == "😀"
    assert shown(name, [letter, first], [letter]) == "x", "what was none is in the prompt"


def test_half_a_character_of_a_byte_level_prompt_is_not_repeated() -> None:
    first, *others = "😀".encode()
    ids = {byte: CODECS["Qwen"].encode("x")[0] for byte in (0,)}
    symbols = {CODECS["Qwen"].token_bytes(token_id): token_id for token_id in range(256)}

    half, rest = symbols[bytes([first])], [symbols[bytes([byte])] for byte in others]
    assert shown("Qwen", [ids[0], half], rest) == "😀"
    assert shown("Qwen", [ids[0], half], [ids[0]]) == "x"


@pytest.mark.parametrize("name", [*KINDS, *OTHER_KINDS])
def test_no_more_than_a_character_is_held_back(name: str) -> None:
    """Tokens that are skipped, or halves without end, make nothing longer."""
    one = detokenizer(name)
    tokenizer = TOKENIZERS[name]
    special = next(iter(tokenizer.get_added_tokens_decoder()))
    half = BYTES_OF.get(name, {}).get(0xE2, special)
    for _ in range(10_000):
        one.push(special)
        one.push(half)

    assert len(one.flush()) <= 4
    assert max(map(_held, vars(one).values())) <= 8


def _held(value: object) -> int:
    return len(value) if isinstance(value, list | bytes) else 0


@pytest.mark.parametrize(
    ("name", "symbol", "data", "text"),
    [
        ("Llama 2", "<0xE2>", b"\xe2", "\ufffd"),
        ("Llama 2", "<0x0A>", b"\n", "\n"),
        ("Llama 2", "\u2581cat", b" cat", " cat"),
        ("Llama 2", "</s>", b"</s>", "</s>"),
        ("Gemma", "\u2581\u2581\u2581\u2581", b"    ", "    "),
        ("T5", "\u2581cat", b" cat", " cat"),
        ("Qwen", "æĹ", b"\xe6\x97", "\ufffd"),
        ("Qwen", "<|im_end|>", b"<|im_end|>", "<|im_end|>"),
        ("WordPiece", "cat", b"cat", "cat"),
    ],
)
def test_a_token_is_known_by_the_bytes_that_it_adds_to_a_text(
    name: str, symbol: str, data: bytes, text: str
) -> None:
    token_id = token(name, symbol)

    assert CODECS[name].token_bytes(token_id) == data
    assert CODECS[name].token_text(token_id) == text


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_of_all_tokens_of_a_text_are_the_text(name: str) -> None:
    text = "the naïve cat" if name == "T5" else "the naïve cat sat 😀\n日本!"
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    data = b"".join(CODECS[name].token_bytes(token_id) for token_id in ids)

    assert data.decode().lstrip() == text
