import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tandem_engine.api.errors import EngineStopped, RequestFailed
from tandem_serve.testing import FakeEngine, client_of, fake_app

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PATHS = (
    "/health, /metrics, /debug/steps, /debug/timeline, /v1/models, /v1/models/{model:path}, "
    "/v1/chat/completions, /v1/completions, /tokenize, /detokenize"
)
HELLO = {"role": "user", "content": "hi"}


async def post(path: str, body: dict[str, Any], engine: FakeEngine) -> httpx.Response:
    async with client_of(fake_app(engine)) as client:
        return await client.post(path, json={"model": "tiny", "messages": [HELLO]} | body)


def the_error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith((".", "?"))
    return error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is empty; send a JSON object."),
        (b'{"a":1,}', "The body is not valid JSON: trailing comma at line 1 column 8."),
        (b'{"a":\nNaN}', "The body is not valid JSON: expected value at line 2 column 1."),
        (b"[1]", "The body must be a JSON object, not a list."),
    ],
)
async def test_malformed_json_says_where(body: bytes, message: str) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(CHAT, content=body)

    assert response.status_code == 400
    assert the_error(response)["message"] == message
    assert the_error(response)["code"] == "invalid_json"


async def test_half_a_surrogate_is_refused_before_it_can_spoil_an_answer() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(COMPLETIONS, content=b'{"model": "\\ud800", "prompt": "a"}')

    assert response.status_code == 400
    assert the_error(response)["code"] == "invalid_json"


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with client_of(fake_app(FakeEngine(), max_request_bytes=64)) as client:
        response = await client.post(CHAT, content=b" " * 65)

    assert response.status_code == 413
    assert the_error(response)["code"] == "request_too_large"
    assert the_error(response)["message"] == ("The body exceeds the limit of 64 bytes; send less.")


@pytest.mark.parametrize(
    ("headers", "num_read"),
    [
        pytest.param({}, 5, id="whose answer would be lost with the connection"),
        pytest.param({"content-length": "160"}, 5, id="announced"),
        pytest.param({"content-length": str(10**12)}, 0, id="announced, and endless"),
        pytest.param({"content-length": "160", "expect": "100-continue"}, 0, id="not sent yet"),
    ],
)
async def test_a_body_that_is_too_large_is_read_to_its_end_if_that_is_near(
    headers: dict[str, str], num_read: int
) -> None:
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(5):
            read.append(b" " * 32)
            yield read[-1]

    async with client_of(fake_app(FakeEngine(), max_request_bytes=64)) as client:
        response = await client.post(CHAT, content=body(), headers=headers)

    assert response.status_code == 413
    assert len(read) == num_read


@pytest.mark.parametrize("announced", ["64", "9" * 5000, "many"])
async def test_bytes_are_counted_whatever_was_announced(announced: str) -> None:
    async with client_of(fake_app(FakeEngine(), max_request_bytes=64)) as client:
        response = await client.post(CHAT, content=b" " * 65, headers={"content-length": announced})

    assert response.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        (
            "GET",
            "/v1/nothing",
            404,
            f"No route /v1/nothing; available: {PATHS}.",
        ),
        ("GET", CHAT, 405, f"{CHAT} does not support GET; allowed: POST."),
        ("POST", "/v1/models", 405, "/v1/models does not support POST; allowed: GET."),
    ],
)
async def test_routes_that_are_not_there(method: str, path: str, status: int, message: str) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.request(method, path)

    assert response.status_code == status
    assert the_error(response)["message"] == message
    assert ("allow" in response.headers) is (status == 405)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RequestFailed("The device lost it."), 500, "request_failed"),
        (EngineStopped("The replica stops."), 503, "engine_stopped"),
    ],
    ids=["request failed", "engine stopped"],
)
async def test_an_engine_error_before_the_first_byte_has_its_status(
    failure: Exception, status: int, code: str, *, is_stream: bool
) -> None:
    response = await post(CHAT, {"stream": is_stream}, FakeEngine(fails_after=0, failure=failure))

    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert the_error(response) == {
        "message": str(failure),
        "type": "server_error",
        "param": None,
        "code": code,
    }


async def test_a_stopped_engine_takes_nothing() -> None:
    engine = FakeEngine()
    engine.stop_because("The replica is being replaced.")

    response = await post(CHAT, {"stream": True}, engine)

    assert response.status_code == 503
    assert the_error(response)["message"] == "The replica is being replaced."


async def test_a_starting_engine_takes_nothing() -> None:
    async with client_of(fake_app(None)) as client:
        response = await client.post(CHAT, json={"model": "tiny", "messages": [HELLO]})

    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert the_error(response)["code"] == "engine_starting"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("failure", [ZeroDivisionError("secret"), OSError("secret")])
async def test_a_bug_is_logged_and_not_shown(
    caplog: pytest.LogCaptureFixture, failure: Exception, *, is_stream: bool
) -> None:
    engine = FakeEngine(fails_after=0, failure=failure)

    response = await post(CHAT, {"stream": is_stream}, engine)

    assert response.status_code == 500
    assert the_error(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert "testing.py" in caplog.text
    assert f"builtins.{type(failure).__name__}" in caplog.text
    # Messages may quote the request; the system's own do not.
    assert ("secret" in caplog.text) == isinstance(failure, OSError)


async def test_a_bug_is_logged_with_its_causes(caplog: pytest.LogCaptureFixture) -> None:
    failure = KeyError("secret")
    failure.__cause__ = ValueError("secret")
    failure.__cause__.__context__ = TypeError("secret")

    await post(CHAT, {}, FakeEngine(fails_after=0, failure=failure))

    named = re.findall(r"builtins\.(\w+)", caplog.text)
    assert named == ["TypeError", "ValueError", "KeyError"]
    assert "secret" not in caplog.text
