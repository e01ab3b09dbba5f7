"""Prompts scored over real HTTP by OpenAI's client, as evaluators ask for them."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem_engine.text.codec import load_codec
from tests.integration.served import MODEL, Served, served
from tests.tiny import TINY

PROMPTS = ["Reverse: abc\ncba\nAdd: 47+38=85 ü€ 😀", "x" * 300, "47"]
ATOL = 1e-4


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY) as running:
        yield running


def expected(token_ids: list[int]) -> list[float]:
    """Log-probabilities of all tokens but the first, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    with torch.inference_mode():
        table = model(torch.tensor([token_ids])).logits[0, :-1].log_softmax(dim=-1)
    return [float(table[at, token_id]) for at, token_id in enumerate(token_ids[1:])]


@pytest.mark.parametrize("as_ids", [False, True], ids=["texts", "token ids"])
def test_echoes_of_prompts_alone_are_scored_as_by_transformers(
    server: Served, *, as_ids: bool
) -> None:
    encoded = [load_codec(TINY).encode(text) for text in PROMPTS]

    answer = server.openai().completions.create(
        model=MODEL, prompt=encoded if as_ids else PROMPTS, echo=True, logprobs=2, max_tokens=0
    )

    for choice, text, token_ids in zip(answer.choices, PROMPTS, encoded, strict=True):
        assert (choice.text, choice.finish_reason) == (text, "length")
        logprobs = choice.logprobs
        assert logprobs is not None
        first, *others = logprobs.token_logprobs or []
        assert first is None
        assert others == pytest.approx(expected(token_ids), abs=ATOL)
        assert logprobs.top_logprobs is not None
        assert logprobs.top_logprobs[0] is None
        assert all(2 <= len(top) <= 3 for top in logprobs.top_logprobs[1:])
        # Each token is the text from its offset to the next; parts of a character share one.
        spans = [text[start:end] for start, end in pairwise([*logprobs.text_offset, len(text)])]
        assert all(
            span in ("", token) or token.startswith("bytes:")
            for span, token in zip(spans, logprobs.tokens or [], strict=True)
        )
        assert "".join(spans) == text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_an_answer_has_in_an_echo_what_it_was_sampled_with(server: Served) -> None:
    client = server.openai()
    ids = load_codec(TINY).encode("Reverse: abc\n")
    options: dict[str, Any] = {
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 1,
        "extra_body": {"ignore_eos": True},
    }

    said = client.completions.create(model=MODEL, prompt=ids, echo=True, **options)
    stream = client.completions.create(model=MODEL, prompt=ids, echo=True, stream=True, **options)

    [choice] = said.choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == len(ids) + 8
    chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    streamed = [value for chunk in chunks for value in chunk.logprobs.token_logprobs]
    assert streamed[0] is None
    assert streamed[1:] == pytest.approx(choice.logprobs.token_logprobs[1:], abs=ATOL)


def test_a_conversation_is_scored_and_its_prefix_stays_cached(server: Served) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Reverse: abcdefgh " * 4}],
        "max_tokens": 4,
        "temperature": 0,
    }
    ids = load_codec(TINY).encode_chat(body["messages"])

    plain = server.post("/v1/chat/completions", body).json()
    scored = [
        server.post("/v1/chat/completions", {**body, "prompt_logprobs": 1, **more}).json()
        for more in ({}, {"n": 2}, {"max_tokens": 0})
    ]

    texts = [choice["message"]["content"] for answer in scored[:2] for choice in answer["choices"]]
    assert set(texts) == {plain["choices"][0]["message"]["content"]}
    values = expected(ids)
    for answer in scored:
        first, *others = answer["prompt_logprobs"]
        assert first is None
        own = [entry[str(token)]["logprob"] for entry, token in zip(others, ids[1:], strict=True)]
        assert own == pytest.approx(values, abs=ATOL)
        assert all(
            entry[str(token)]["rank"] >= 1 for entry, token in zip(others, ids[1:], strict=True)
        )
