"""Errors quote what was sent, and little of it."""

from typing import Any

import pytest

from tandem_serve.testing import FakeEngine, client_of, fake_app

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = "z" * 3000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/debug/steps?{LONG}=1", None),
        ("GET", f"/debug/steps?limit={LONG}", None),
        ("GET", f"/{LONG}", None),
        (LONG.upper(), CHAT, None),
        ("POST", COMPLETIONS, {LONG: 1}),
        ("POST", COMPLETIONS, {"model": "a" * 256}),
        ("POST", COMPLETIONS, {"temperature": LONG}),
        ("POST", COMPLETIONS, {"stop": [".", [LONG]]}),
        ("POST", COMPLETIONS, {"stop": [LONG]}),
        ("POST", COMPLETIONS, {"stop": [LONG[:1000]], "use_beam_search": True}),
        ("POST", COMPLETIONS, {"logit_bias": {LONG: 1}}),
        ("POST", COMPLETIONS, {"logit_bias": {LONG: "x"}}),
        ("POST", COMPLETIONS, {"stream": True, "stream_options": {LONG: 1}}),
        ("POST", CHAT, {"messages": [{"role": LONG, "content": "x"}]}),
        ("POST", CHAT, {"messages": [{"role": "user", "content": "x", LONG: 1}]}),
        ("POST", CHAT, {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    ],
)
async def test_an_error_quotes_little_of_what_was_sent(
    method: str, path: str, body: dict[str, Any] | None
) -> None:
    fields = {"model": "tiny", "prompt": "x"} if path == COMPLETIONS else {"model": "tiny"}
    async with client_of(fake_app(FakeEngine(), strict=True)) as client:
        sent = None if body is None else fields | body
        response = await client.request(method, path, json=sent)

    assert response.status_code in (400, 404, 405)
    error = response.json()["error"]
    for quoted in ("z", "Z", "a"):
        assert quoted * 200 not in error["message"] + str(error["param"])
