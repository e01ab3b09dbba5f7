"""Time limits of a call: X-Request-Timeout, e2eTimeout, and the answer when the time is over."""

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from tandem_engine.api.errors import ConfigError, DeadlineExceeded
from tandem_serve.http.settings import HttpSettings
from tandem_serve.testing import Caller, FakeEngine, client_of, fake_app

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"model": "tiny", "prompt": "ab"}
BODIES = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: BODY,
}
LATE = DeadlineExceeded("The request exceeded its deadline of 2 s: it was waiting.")
HEADER = "X-Request-Timeout"


@pytest.mark.parametrize(
    ("requested", "service", "in_force"),
    [
        (None, None, 600.0),
        (None, 30.0, 30.0),
        ("5", None, 5.0),
        ("0.25", None, 0.25),
        ("900", None, 600.0),
        ("65535", 65535.0, 65535.0),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_the_lesser_of_both_goes_to_the_engine(
    path: str, requested: str | None, service: float | None, in_force: float
) -> None:
    engine = FakeEngine()
    settings: dict[str, Any] = {} if service is None else {"e2e_timeout_s": service}
    async with client_of(fake_app(engine, **settings)) as client:
        headers = {} if requested is None else {HEADER: requested}
        response = await client.post(path, json=BODIES[path], headers=headers)

    assert response.status_code == 200
    assert [each.timeout_s for each in engine.submitted] == [in_force]


@pytest.mark.parametrize(
    "wrong",
    ["0", "0.0", "-1", "65535.5", "65536", "1e3", "5s", "", "nan", "inf", "1,2", "٣", "9" * 400],
)
async def test_what_is_no_number_of_seconds_is_refused(wrong: str) -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine)) as client:
        headers = [(HEADER.encode(), wrong.encode())]
        response = await client.post(COMPLETIONS, json=BODY, headers=headers)

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (HEADER, "invalid_value")
    assert error["message"].endswith(
        "it must be a number of seconds, such as 30 or 0.5, above 0 and at most 65535."
    )
    assert len(error["message"]) < 250
    assert not engine.submitted


async def test_two_of_them_are_refused() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(COMPLETIONS, json=BODY, headers=[(HEADER, "1"), (HEADER, "2")])

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{HEADER} is '1, 2'")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_has_not_begun_is_a_504_that_clients_do_not_repeat(
    *, is_stream: bool
) -> None:
    engine = FakeEngine(fails_after=0, failure=LATE)
    async with client_of(fake_app(engine)) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"stream": is_stream})

    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    assert response.json() == {
        "error": {
            "message": str(LATE),
            "type": "server_error",
            "param": None,
            "code": "deadline_exceeded",
        }
    }


async def test_a_stream_that_has_begun_ends_with_the_error() -> None:
    engine = FakeEngine(fails_after=1, failure=LATE)
    caller = Caller(fake_app(engine), COMPLETIONS, BODY | {"stream": True}, headers={HEADER: "2"})
    await caller.call()
    sent = [caller.received.get_nowait() for _ in range(caller.received.qsize())]

    assert sent[0]["status"] == 200
    last = json.loads(sent[-2]["body"].removeprefix(b"data: "))
    assert last["error"]["code"] == "deadline_exceeded"
    assert len(engine.aborted) == 1


async def test_a_deadline_exceeded_before_the_engine_has_the_prompt_is_a_504() -> None:
    engine, seconds = FakeEngine(), count(0.0, 10.0)
    app = fake_app(engine, monotonic_s=lambda: next(seconds))
    async with client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY, headers={HEADER: "1.5"})

    assert response.status_code == 504
    assert response.json()["error"]["message"] == (
        "The request exceeded its deadline of 1.5 s before its prompt reached the engine. Allow "
        "more time, or send less at once."
    )
    assert not engine.submitted
    assert app.state.http.admission.num_in_flight == 0


async def test_the_time_of_the_body_counts_towards_the_deadline() -> None:
    engine, now = FakeEngine(), [100.0]
    app = fake_app(engine, monotonic_s=lambda: now[0])
    caller = Caller(app, COMPLETIONS, BODY, headers={HEADER: "5"})
    receive = caller._receive

    async def slowly() -> Any:
        now[0] += 2.0
        return await receive()

    caller._receive = slowly  # type: ignore[method-assign]
    await asyncio.wait_for(caller.call(), 60)

    assert [each.timeout_s for each in engine.submitted] == [3.0]


@pytest.mark.parametrize("wrong", [0.0, -1.0, 65536.0])
def test_a_service_has_minds_range(wrong: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 65535"):
        HttpSettings(model_name="tiny", created_s=0, e2e_timeout_s=wrong)
