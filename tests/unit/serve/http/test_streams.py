"""Callers that go away, and streams that end badly."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from tandem_engine.api.errors import DeadlineExceeded, EngineStopped, RequestFailed
from tandem_serve.http.admission.slots import SlotRequest
from tandem_serve.http.openai.streaming import COMMENT
from tandem_serve.testing import Caller, FakeEngine, client_of, fake_app
from tests.patience import HANG_S

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CHAT_BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TWO_PROMPTS = {"model": "tiny", "prompt": ["ab", "cd"], "n": 2}
AT_ONCE: dict[str, Any] = {"head_after_s": 0.001, "comment_after_s": 0.001}


async def called(app: FastAPI, change: dict[str, Any]) -> Caller:
    """The caller of a chat that has ended."""
    caller = Caller(app, CHAT, CHAT_BODY | change)
    await caller.call()
    return caller


def bodies(caller: Caller) -> list[bytes]:
    """The pieces of the body that were not taken yet."""
    messages = [caller.received.get_nowait() for _ in range(caller.received.qsize())]
    return [message["body"] for message in messages if message["type"] == "http.response.body"]


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


async def test_the_head_waits_for_an_event_that_comes_soon() -> None:
    engine = FakeEngine(pauses_after=0)
    caller = Caller(fake_app(engine), CHAT, CHAT_BODY | {"stream": True})
    call = asyncio.create_task(caller.call())

    await engine.paused.wait()

    assert caller.received.empty()
    engine.resume.set()
    await call
    assert (await caller.received.get())["status"] == 200


@pytest.mark.parametrize("pauses_after", [0, 1], ids=["in the queue", "after a token"])
async def test_comments_keep_a_silent_stream_alive(pauses_after: int) -> None:
    engine = FakeEngine(pauses_after=pauses_after)
    app = fake_app(engine, **AT_ONCE)
    caller = Caller(app, CHAT, CHAT_BODY | {"stream": True})
    call = asyncio.create_task(caller.call())

    begin = [await caller.received.get() for _ in range(4 + pauses_after)]
    engine.resume.set()
    await call

    assert begin[0]["type"] == "http.response.start"
    assert begin[0]["status"] == 200
    pieces = [message["body"] for message in begin[1:]] + bodies(caller)
    assert pieces.count(COMMENT) >= 3
    events = [piece for piece in pieces if piece != COMMENT]
    assert events == bodies(await called(fake_app(FakeEngine()), {"stream": True}))


async def test_a_stream_that_is_not_silent_has_no_comment() -> None:
    caller = await called(fake_app(FakeEngine()), {"stream": True})

    assert COMMENT not in bodies(caller)


async def test_an_error_after_the_head_is_the_last_event() -> None:
    engine = FakeEngine(pauses_after=0, fails_after=0, failure=EngineStopped("It has stopped."))
    caller = Caller(fake_app(engine, **AT_ONCE), CHAT, CHAT_BODY | {"stream": True})
    call = asyncio.create_task(caller.call())
    head, _ = [await caller.received.get() for _ in range(2)]

    engine.resume.set()
    await call

    assert head["status"] == 200
    *_, last, end = bodies(caller)
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_stopped"
    assert end == b""


@pytest.mark.parametrize(
    ("engine", "change", "status"),
    [
        (FakeEngine(), {"n": 5}, 429),
        (FakeEngine(), {"temperature": -1}, 400),
        (FakeEngine(), {"model": "large"}, 404),
        (FakeEngine(max_requests=0), {}, 503),
        (FakeEngine(fails_after=0, failure=RequestFailed("It died.")), {}, 500),
        (FakeEngine(fails_after=0, failure=DeadlineExceeded("Too late.")), {}, 504),
    ],
)
async def test_what_is_decided_at_once_is_a_status(
    engine: FakeEngine, change: dict[str, Any], status: int
) -> None:
    app = fake_app(engine, max_link_num=2, head_after_s=HANG_S, comment_after_s=0.001)
    busy = app.state.http.admission.slots(SlotRequest(num_each=2))
    with busy:
        caller = await called(app, {"stream": True} | change)

    head = await caller.received.get()
    assert head["status"] == status
    assert (b"content-type", b"application/json") in head["headers"]


async def test_a_caller_that_goes_away_between_comments_ends_its_request() -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine, **AT_ONCE)
    caller = Caller(app, CHAT, CHAT_BODY | {"stream": True})
    call = asyncio.create_task(caller.call())
    for _ in range(3):
        await caller.received.get()

    caller.hang_up()
    await call

    assert len(engine.aborted) == 1
    assert app.state.http.admission.num_in_flight == 0


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
