"""Scripts of web pages: which origins may call, and what a browser asks first."""

from pathlib import Path
from typing import Any

import pytest

from tandem_serve.testing import FakeEngine, client_of, fake_app

CHAT = "/v1/chat/completions"
PAGE, OTHER = "http://localhost:3000", "https://evil.example.com"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "session": 1}
REQUESTED = "authorization,content-type,x-stainless-os"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("sk-1")
    return tmp_path


def asks(origin: str) -> dict[str, str]:
    """Return the headers by which a browser asks before it sends a chat."""
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": REQUESTED,
    }


async def call(method: str, headers: dict[str, str], body: Any = None, **settings: Any) -> Any:
    async with client_of(fake_app(FakeEngine(), **settings)) as client:
        return await client.request(method, CHAT, headers=headers, json=body)


@pytest.mark.parametrize("allowed", [(PAGE,), ("*",), ("https://a.b", PAGE)])
async def test_a_browser_may_ask_without_a_key(allowed: tuple[str, ...], keys: Path) -> None:
    answer = await call("OPTIONS", asks(PAGE), allowed_origins=allowed, api_keys_folder=keys)

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in ("*", PAGE)
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == REQUESTED
    assert "access-control-allow-credentials" not in answer.headers


async def test_another_origin_is_not_allowed(keys: Path) -> None:
    settings = {"allowed_origins": (PAGE,), "api_keys_folder": keys}
    asked = await call("OPTIONS", asks(OTHER), **settings)
    sent = await call("POST", {"origin": OTHER, "authorization": "Bearer sk-1"}, BODY, **settings)

    assert asked.status_code == 400
    for answer in (asked, sent):
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_page_can_read_the_answer_and_what_it_ignored(*, is_stream: bool) -> None:
    body = BODY | {"stream": is_stream}
    answer = await call("POST", {"origin": PAGE}, body, allowed_origins=(PAGE,))

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "x-tandem-ignored-fields", "retry-after"} == {*exposed}
    assert answer.headers["x-tandem-ignored-fields"] == "session"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        pytest.param({}, BODY, 401, id="no key"),
        pytest.param({"authorization": "Bearer sk-1"}, {}, 400, id="a bad body"),
    ],
)
async def test_a_page_can_read_a_refusal(
    headers: dict[str, str], body: Any, status: int, keys: Path
) -> None:
    answer = await call(
        "POST", {"origin": PAGE, **headers}, body, allowed_origins=(PAGE,), api_keys_folder=keys
    )

    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.json()["error"]["message"]


async def test_without_origins_no_page_may_call(keys: Path) -> None:
    asked = await call("OPTIONS", asks(PAGE), api_keys_folder=keys)
    sent = await call("POST", {"origin": PAGE}, BODY)

    assert asked.status_code == 405
    assert sent.status_code == 200
    for answer in (asked, sent):
        assert not [name for name in answer.headers if name.startswith("access-control")]
