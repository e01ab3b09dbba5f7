"""The client that users have: OpenAI's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tandem_serve.testing import FakeEngine, client_of, fake_app

ANSWER = ":tnatsissa;ih:resu"


@asynccontextmanager
async def openai_client(engine: FakeEngine, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    # OpenAI's client is typed for its own fork of httpx, and takes either.
    http_client: Any
    async with client_of(fake_app(engine, **settings)) as http_client:
        yield openai.AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http_client, max_retries=0
        )


async def test_chat() -> None:
    async with openai_client(FakeEngine()) as client:
        answer = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            logprobs=True,
            top_logprobs=1,
        )

    [choice] = answer.choices
    assert choice.message.content == ANSWER
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert choice.logprobs.content[0].top_logprobs[0].logprob == -0.5
    assert answer.usage is not None
    assert answer.usage.total_tokens == 38


async def test_chat_stream() -> None:
    async with openai_client(FakeEngine()) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 19


async def test_an_answer_can_be_sent_back_as_history() -> None:
    engine = FakeEngine()
    async with openai_client(engine) as client:
        first = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=1
        )
        history: list[Any] = [
            {"role": "user", "content": "a"},
            first.choices[0].message.model_dump(),
            {"role": "user", "content": "b"},
        ]
        await client.chat.completions.create(model="tiny", messages=history)

    assert (
        bytes(engine.submitted[1].prompt_token_ids[1:]) == b"user:a;assistant::;user:b;assistant:"
    )


async def test_completions() -> None:
    async with openai_client(FakeEngine()) as client:
        whole = await client.completions.create(model="tiny", prompt=["ab", "cd"], logprobs=1)
        stream = await client.completions.create(model="tiny", prompt="ab", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])

    assert [choice.text for choice in whole.choices] == ["ba", "dc"]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.tokens == ["b", "a", "<end>"]
    assert text == "ba"


async def test_models() -> None:
    async with openai_client(FakeEngine()) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "tandem"


async def test_errors_become_the_clients_exceptions() -> None:
    async with openai_client(FakeEngine()) as client:
        with pytest.raises(openai.NotFoundError, match="serves 'tiny'"):
            await client.completions.create(model="large", prompt="a")
        with pytest.raises(openai.BadRequestError, match="it must be in") as caught:
            await client.completions.create(model="tiny", prompt="a", temperature=-1)

    assert caught.value.param == "temperature"
    assert caught.value.code == "invalid_value"


async def test_an_error_in_a_stream_is_raised() -> None:
    engine = FakeEngine(fails_after=1, failure=RuntimeError("a bug"))
    async with openai_client(engine) as client:
        stream = await client.completions.create(model="tiny", prompt="ab", stream=True)
        with pytest.raises(openai.APIError, match="failed unexpectedly"):
            async for _ in stream:
                pass
