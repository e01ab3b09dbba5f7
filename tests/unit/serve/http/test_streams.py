"""Callers that go away, and streams that end badly."""

import asyncio
import json
from typing import Any

import pytest

from tandem_engine.api.errors import RequestFailed
from tandem_serve.testing import Caller, FakeEngine, client_of, fake_app

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CHAT_BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TWO_PROMPTS = {"model": "tiny", "prompt": ["ab", "cd"], "n": 2}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("pauses_after", [0, 1])
@pytest.mark.parametrize(
    ("path", "body", "num_requests"),
    [(CHAT, CHAT_BODY, 1), (COMPLETIONS, TWO_PROMPTS, 2)],
    ids=["chat", "two prompts with two choices"],
)
async def test_a_caller_that_goes_away_ends_its_requests(
    path: str, body: dict[str, Any], num_requests: int, pauses_after: int, *, is_stream: bool
) -> None:
    engine = FakeEngine(pauses_after=pauses_after)
    app = fake_app(engine)
    caller = Caller(app, path, body | {"stream": is_stream})
    call = asyncio.create_task(caller.call())
    await engine.paused.wait()

    caller.hang_up()
    await call

    assert len(engine.aborted) == num_requests
    assert engine.aborted[::-1] == [submitted.request_id for submitted in engine.submitted]
    assert app.state.http.admission.num_in_flight == 0


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_cancelled_call_ends_its_requests(*, is_stream: bool) -> None:
    engine = FakeEngine(pauses_after=1)
    app = fake_app(engine)
    call = asyncio.create_task(Caller(app, CHAT, CHAT_BODY | {"stream": is_stream}).call())
    await engine.paused.wait()

    call.cancel()
    await asyncio.wait([call])

    assert call.cancelled()
    assert len(engine.aborted) == 1
    assert app.state.http.admission.num_in_flight == 0


async def test_events_are_sent_as_they_come() -> None:
    engine = FakeEngine(pauses_after=1)
    caller = Caller(fake_app(engine), CHAT, CHAT_BODY | {"stream": True})
    call = asyncio.create_task(caller.call())
    await engine.paused.wait()

    head, first = [await caller.received.get() for _ in range(2)]

    assert head["type"] == "http.response.start"
    assert b'"role":"assistant"' in first["body"]
    assert caller.received.empty()
    engine.resume.set()
    await call


async def test_the_head_waits_for_the_first_event() -> None:
    engine = FakeEngine(pauses_after=0)
    caller = Caller(fake_app(engine), CHAT, CHAT_BODY | {"stream": True})
    call = asyncio.create_task(caller.call())

    await engine.paused.wait()

    assert caller.received.empty()
    engine.resume.set()
    await call
    assert (await caller.received.get())["status"] == 200


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, CHAT_BODY), (COMPLETIONS, TWO_PROMPTS)], ids=["chat", "completions"]
)
async def test_an_error_in_a_stream_is_its_last_event(path: str, body: dict[str, Any]) -> None:
    engine = FakeEngine(fails_after=2, failure=RequestFailed("The device lost it."))
    app = fake_app(engine)
    async with client_of(app) as client:
        response = await client.post(path, json=body | {"stream": True})

    *_, last, nothing = response.text.split("\n\n")
    assert response.status_code == 200
    assert nothing == ""
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {
            "message": "The device lost it.",
            "type": "server_error",
            "param": None,
            "code": "request_failed",
        }
    }
    assert "[DONE]" not in response.text
    assert len(engine.aborted) == len(engine.submitted)
    assert app.state.http.admission.num_in_flight == 0


async def test_an_error_of_the_engine_is_not_taken_for_a_broken_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine(fails_after=1, failure=OSError("The disk is full."))
    async with client_of(fake_app(engine)) as client:
        response = await client.post(CHAT, json=CHAT_BODY | {"stream": True})

    assert '"code":"internal_error"' in response.text
    assert "The disk is full." in caplog.text


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_request_that_ended_well_returns_its_slot(*, is_stream: bool) -> None:
    engine = FakeEngine()
    app = fake_app(engine)
    async with client_of(app) as client:
        await client.post(CHAT, json=CHAT_BODY | {"stream": is_stream})

    assert engine.aborted == []
    assert app.state.http.admission.num_in_flight == 0


async def test_prompts_before_a_refused_one_are_given_back() -> None:
    engine = FakeEngine(max_requests=1)
    async with client_of(fake_app(engine)) as client:
        response = await client.post(COMPLETIONS, json=TWO_PROMPTS)

    assert response.status_code == 503
    assert engine.aborted == [engine.submitted[0].request_id]


async def test_a_writer_that_fails_ends_the_request() -> None:
    engine = FakeEngine()
    caller = Caller(fake_app(engine), CHAT, CHAT_BODY | {"stream": True})
    caller.break_after(2)

    await caller.call()

    assert len(engine.aborted) == 1


async def test_a_caller_that_goes_away_while_sending_is_not_served() -> None:
    engine = FakeEngine()
    caller = Caller(fake_app(engine), CHAT, CHAT_BODY)
    caller.hang_up()

    await caller.call()

    assert (await caller.received.get())["status"] == 499
    assert engine.submitted == []
