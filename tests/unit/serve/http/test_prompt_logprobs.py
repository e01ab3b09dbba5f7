"""Log-probabilities of prompts over HTTP, in OpenAI's older form and in vLLM's."""

from typing import Any

import httpx
import pytest

from tandem_engine.api.output import PromptLogprobs
from tandem_serve.http.openai.logprobs import echo_logprobs
from tandem_serve.testing import BEGIN, FakeCodec, FakeEngine, client_of, fake_app
from tests.unit.serve.http.test_completions import complete, events

ECHO_OF_AB: dict[str, list[Any]] = {
    "tokens": ["<begin>", "a", "b"],
    "token_logprobs": [None, -0.5, -0.5],
    "top_logprobs": [None, {"a": -0.5}, {"b": -0.5}],
    "text_offset": [0, 0, 1],
}
AB = [
    None,
    {
        "97": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        "98": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
    },
    {
        "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        "99": {"logprob": -1.5, "rank": 2, "decoded_token": "c"},
    },
]


async def chat(**body: Any) -> httpx.Response:
    document = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]} | body
    async with client_of(fake_app(FakeEngine())) as client:
        return await client.post("/v1/chat/completions", json=document)


async def test_an_echo_of_a_prompt_alone() -> None:
    body = (await complete(FakeEngine(), prompt="ab", echo=True, logprobs=1, max_tokens=0)).json()

    assert body["choices"] == [
        {"index": 0, "text": "ab", "logprobs": ECHO_OF_AB, "finish_reason": "length"}
    ]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 0


async def test_an_echo_before_an_answer() -> None:
    body = (await complete(FakeEngine(), prompt="ab", echo=True, logprobs=1, max_tokens=1)).json()

    [choice] = body["choices"]
    assert choice["text"] == "abb"
    assert choice["logprobs"] == {
        "tokens": [*ECHO_OF_AB["tokens"], "b"],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "top_logprobs": [*ECHO_OF_AB["top_logprobs"], {"b": -0.5}],
        "text_offset": [0, 0, 1, 2],
    }


@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_a_stream_begins_with_the_echo(max_tokens: int) -> None:
    response = await complete(
        FakeEngine(), prompt=["ab", "cd"], echo=True, logprobs=1, n=2, max_tokens=max_tokens,
        stream=True,
    )  # fmt: skip

    seen: dict[int, Any] = {}
    for chunk in events(response):
        [choice] = chunk["choices"]
        whole = seen.setdefault(choice["index"], {name: [] for name in ECHO_OF_AB})
        for name, values in choice["logprobs"].items():
            whole[name] += values
    whole = (
        await complete(
            FakeEngine(), prompt=["ab", "cd"], echo=True, logprobs=1, n=2, max_tokens=max_tokens
        )
    ).json()
    assert seen == {choice["index"]: choice["logprobs"] for choice in whole["choices"]}
    assert len(seen) == 4


async def test_an_echo_without_logprobs_computes_nothing_more() -> None:
    engine = FakeEngine()
    body = (await complete(engine, prompt="ab", echo=True, max_tokens=0)).json()

    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["logprobs"] is None
    assert engine.submitted[0].sampling.prompt_logprobs is None


@pytest.mark.parametrize("prompt", [[BEGIN, 97, 98], [[BEGIN, 97, 98]]])
async def test_the_form_of_vllm_in_completions(prompt: object) -> None:
    body = (await complete(FakeEngine(), prompt=prompt, prompt_logprobs=2, max_tokens=1)).json()

    assert body["choices"][0]["prompt_logprobs"] == AB
    assert body["choices"][0]["logprobs"] is None


async def test_each_form_has_as_many_likeliest_as_it_asks_for() -> None:
    body = (
        await complete(FakeEngine(), prompt="ab", prompt_logprobs=2, echo=True, logprobs=0)
    ).json()

    assert body["choices"][0]["prompt_logprobs"] == AB
    assert body["choices"][0]["logprobs"]["top_logprobs"][:3] == [None, {"a": -0.5}, {"b": -0.5}]


async def test_the_form_of_vllm_in_chat() -> None:
    body = (await chat(prompt_logprobs=0, max_tokens=0)).json()

    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"
    first, *others = body["prompt_logprobs"]
    assert first is None
    tokens = [next(iter(entry.values()))["decoded_token"] for entry in others]
    assert tokens == [*"user:a;assistant:"]
    assert "prompt_logprobs" not in (await chat()).json()


async def test_a_stream_of_chat_has_them_in_its_first_chunk() -> None:
    options = {"include_usage": True}
    response = await chat(prompt_logprobs=1, max_tokens=2, n=2, stream=True, stream_options=options)

    first, *others = events(response)
    assert first["prompt_logprobs"] == (await chat(prompt_logprobs=1)).json()["prompt_logprobs"]
    assert first["usage"] is None
    assert not [chunk for chunk in others if "prompt_logprobs" in chunk]


async def test_a_prompt_of_one_token_has_none() -> None:
    body = (
        await complete(
            FakeEngine(), prompt=[97], echo=True, logprobs=1, prompt_logprobs=1, max_tokens=0
        )
    ).json()

    assert body["choices"][0]["prompt_logprobs"] == [None]
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["a"],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [0],
    }


def test_special_tokens_that_the_text_does_not_show_take_none_of_it() -> None:
    prompt = PromptLogprobs(
        token_ids=(97, BEGIN, 98),
        logprobs=[-1.0] * 3,
        ranks=[1] * 3,
        num_top=0,
        top_ids=[],
        top_logprobs=[],
    )

    hidden = echo_logprobs(FakeCodec(), BEGIN, prompt, num_top=0, text="ab")
    shown = echo_logprobs(FakeCodec(), BEGIN, prompt, num_top=0, text="a<begin>b")

    assert hidden["text_offset"] == [0, 0, 1, 1]
    assert shown["text_offset"] == [0, 0, 1, 8]
