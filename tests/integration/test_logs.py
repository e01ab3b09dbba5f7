"""No log, at any level, has what callers ask or what they get: a real server that logs all."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tandem_engine.text.codec import load_codec
from tests.integration.logged_server import FAULTY_START, FAULTY_STEP, FAULTY_TEXT, MODEL
from tests.patience import HANG_S
from tests.tiny import TINY

ROOT: Final = Path(__file__).parents[2]
MARKER: Final = "zq7secret"
KEY: Final = f"sk-{MARKER}"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
HEADERS: Final = {
    "authorization": f"Bearer {KEY}",
    "x-tenant": MARKER,
    "user-agent": MARKER,
    "cookie": MARKER,
    "baggage": f"a={MARKER}",
    "tracestate": f"a={MARKER}",
    "traceparent": MARKER,
}
MESSAGES: Final = [{"role": "user", "content": f"Reverse: {MARKER}", "name": MARKER}]
VALID: Final[list[dict[str, Any]]] = [
    {},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"logprobs": True, "top_logprobs": 2, "ignore_eos": True},
    {"stop": [MARKER, f"{MARKER}!"], "n": 2, "ignore_eos": True},
    {"user": MARKER, "metadata": {"a": MARKER}, "safety_identifier": MARKER},
    {"cache_salt": MARKER, "prompt_cache_key": MARKER, "request_id": MARKER},
    {"chat_template_kwargs": {"a": MARKER}},
    {"unknown": MARKER, "prediction": {"type": "content", "content": MARKER}},
    {"stream": True, "ignore_eos": True, "max_tokens": 60},
]
WRONG: Final[list[dict[str, Any]]] = [
    {"temperature": MARKER},
    {"messages": MARKER},
    {"messages": [{"role": MARKER, "content": MARKER}]},
    {"messages": [{"role": "user", "content": {"text": MARKER}}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": MARKER}]}]},
    {"messages": [{"role": "user", "content": f"{MARKER} " * 2000}]},
    {"model": MARKER},
    {"stop": {"a": MARKER}},
    {"logit_bias": {MARKER: 1}},
    {"cache_salt": MARKER * 100},
    {"chat_template": MARKER},
    {"tools": [{"type": "function", "function": {"name": MARKER, "description": MARKER}}]},
    {"tool_choice": {"type": "function", "function": {"name": MARKER}}},
    {"guided_choice": [MARKER], "max_tokens": 2},
    {"guided_regex": MARKER, "max_tokens": 2},
    {"response_format": {"type": "json_schema", "json_schema": {"name": MARKER}}},
    {"documents": [{"text": MARKER}]},
    {"prompt_logprobs": MARKER},
    {"early_stopping": MARKER},
    {"priority": MARKER},
]
FAILING: Final[list[dict[str, Any]]] = [
    {"max_tokens": FAULTY_STEP},
    {"max_tokens": FAULTY_STEP, "stream": True},
    {"max_tokens": FAULTY_START},
    {"messages": [{"role": "user", "content": f"{FAULTY_TEXT}{MARKER}"}]},
    {"messages": [{"role": "user", "content": f"{FAULTY_TEXT}{MARKER}"}], "stream": True},
]


@dataclass(frozen=True)
class LoggedServer:
    """A server that runs, and the file of its output."""

    client: httpx.Client
    output: Path

    def chat(self, **fields: Any) -> httpx.Response:
        """Ask with the marker; `fields` are those that are not to have their defaults."""
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0} | fields
        return self.client.post(CHAT, json=body)

    def text(self) -> str:
        """All that was logged until now."""
        return self.output.read_text(errors="replace")


@contextmanager
def started(folder: Path) -> Iterator[LoggedServer]:
    """Run the server, with one API key in `folder`/keys."""
    keys, output = folder / "keys", folder / "log"
    keys.mkdir()
    (keys / "key").write_text(KEY)
    command = [sys.executable, "-m", "tests.integration.logged_server", str(keys)]
    with (
        output.open("wb") as file,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers=HEADERS, timeout=HANG_S, trust_env=False) as client:
            yield LoggedServer(client, output)
        process.stdin.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedServer]:
    with started(tmp_path_factory.mktemp("logged")) as server:
        yield server


def ids_of(text: str) -> str:
    """Token ids of a text, as Python writes a part of a list of them."""
    return ", ".join(map(str, load_codec(TINY).encode(text, add_special_tokens=False)))


def assert_says_nothing(log: str, *answers: str) -> None:
    assert MARKER not in log
    assert ids_of(MARKER) not in log
    for answer in answers:
        assert len(answer) > 3
        assert answer not in log
        assert ids_of(answer) not in log


def test_what_is_asked_and_answered_is_not_logged(server: LoggedServer) -> None:
    answers = [server.chat(**fields) for fields in VALID]
    completion = server.client.post(
        COMPLETIONS, json={"model": MODEL, "prompt": [MARKER, f"{MARKER}!"], "echo": True, "n": 2}
    )
    tokens = server.client.post("/tokenize", json={"prompt": MARKER}).json()["tokens"]
    text = server.client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]

    assert {answer.status_code for answer in [*answers, completion]} == {200}
    assert text == MARKER
    assert MARKER not in server.client.get("/metrics").text
    assert MARKER not in server.client.get("/debug/steps").text
    spoken = [answer.json()["choices"][0]["message"]["content"] for answer in answers[2:4]]
    assert_says_nothing(server.text(), *spoken)
    # It has been logged that there was something to log.
    assert "unknown field unknown" in server.text()


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: next(iter(fields)))
def test_what_is_refused_is_not_logged(server: LoggedServer, fields: dict[str, Any]) -> None:
    server.chat(**fields)

    assert_says_nothing(server.text())


@pytest.mark.parametrize(
    ("path", "content", "headers"),
    [
        (CHAT, f'{{"model": "{MARKER}'.encode(), {}),
        (CHAT, f'["{MARKER}"]'.encode(), {}),
        (CHAT, MARKER.encode() + b"\xff", {}),
        (CHAT, MARKER.encode(), {"content-encoding": MARKER}),
        (CHAT, b"{}", {"authorization": f"Bearer {MARKER}"}),
        (CHAT, b"{}", {"authorization": MARKER}),
        (CHAT, b"{}", {"x-request-timeout": MARKER}),
        (CHAT, b"{}", {"x-request-id": f"{MARKER} {MARKER}"}),
        (f"{CHAT}?a={MARKER}", b"{}", {}),
        (f"/v1/{MARKER}", b"{}", {}),
    ],
)
def test_what_is_no_request_is_not_logged(
    server: LoggedServer, path: str, content: bytes, headers: dict[str, str]
) -> None:
    answer = server.client.post(path, content=content, headers=headers)

    assert answer.status_code in (400, 401, 404, 415)
    assert_says_nothing(server.text())


@pytest.mark.parametrize("fields", FAILING, ids=["step", "step, stream", "start", "text", "text"])
def test_what_fails_is_logged_without_what_was_asked(
    server: LoggedServer, fields: dict[str, Any]
) -> None:
    before = len(server.text())
    answer = server.chat(**fields)
    after = server.text()[before:]

    assert answer.status_code == 500
    assert json.loads(answer.text)["error"]["code"] in ("request_failed", "internal_error")
    assert "Traceback" in after or "failed" in after
    assert_says_nothing(after)
