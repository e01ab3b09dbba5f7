"""Streams that are silent for long, over real HTTP: the head comes, and comments after it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from tandem_engine.api.errors import EngineStopped
from tandem_serve.http.openai.streaming import COMMENT
from tandem_serve.testing import FakeEngine, fake_app

BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
ANSWER = ":tnatsissa;ih:resu"
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def served(engine: FakeEngine) -> AsyncIterator[str]:
    """Serve the engine on this event loop; the URL. Silence is broken every few milliseconds."""
    app = fake_app(engine, max_link_num=1, head_after_s=0.005, comment_after_s=0.005)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    with closing(socket.create_server(("127.0.0.1", 0), backlog=8)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[openai.AsyncStream[Any]]:
    """A chat of OpenAI's client, from the moment on at which it has the stream's head."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    async with client, await client.chat.completions.create(**BODY) as stream:
        yield stream


async def test_openais_client_has_a_stream_before_its_first_token() -> None:
    engine = FakeEngine(pauses_after=0)
    async with served(engine) as url, opened(url) as stream:
        await has_comments(url)
        assert not engine.resume.is_set()
        engine.resume.set()
        chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_openais_client_raises_a_failure_after_the_head() -> None:
    engine = FakeEngine(pauses_after=0, fails_after=0, failure=EngineStopped("A rank was lost."))
    async with served(engine) as url, opened(url) as stream:
        engine.resume.set()
        with pytest.raises(openai.APIError, match=r"A rank was lost\.") as caught:
            await anext(stream)

    assert caught.value.code == "engine_stopped"


async def test_openais_client_gets_the_status_of_a_full_queue() -> None:
    engine = FakeEngine(pauses_after=0)
    async with served(engine) as url, opened(url), opened(url), opened(url):
        with pytest.raises(openai.RateLimitError, match="3 of at most 3 sequences"):
            async with opened(url):
                pass
        engine.resume.set()


async def test_curl_shows_the_comments() -> None:
    engine = FakeEngine(pauses_after=0)
    async with served(engine) as url:
        curl = await asyncio.create_subprocess_exec(
            *("curl", "--silent", "--no-buffer", "--include", f"{url}{CHAT}"),
            *("--header", "content-type: application/json", "--data", json.dumps(BODY)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert curl.stdout is not None
        begin = await curl.stdout.readuntil(COMMENT * 2)
        engine.resume.set()
        rest = await curl.stdout.read()
        await curl.wait()

    assert begin.startswith(b"HTTP/1.1 200 OK")
    assert b"data:" not in begin
    assert rest.endswith(b"data: [DONE]\n\n")


async def has_comments(url: str) -> None:
    """Wait until a stream like others has had two comments."""
    async with (
        httpx.AsyncClient(timeout=None) as client,  # noqa: S113 - the engine waits as well
        client.stream("POST", f"{url}{CHAT}", json=BODY) as response,
    ):
        num_comments = 0
        async for line in response.aiter_lines():
            num_comments += line.startswith(":")
            if num_comments == 2:
                return
