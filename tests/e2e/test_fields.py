"""What clients and pages send passes Ray Serve and HAProxy: answers are those of the application.

The application alone is behind uvicorn in the tests of tests/integration; here each answer is
compared with that of one that is, for the same checkpoint.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.e2e.harness import Service, Tandem, running_service
from tests.integration.browser import Pages, ask, check_answer
from tests.integration.served import MODEL, Served, served
from tests.patience import HANG_S
from tests.tiny import TINY

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "47+38=?"}]}
LONG: Final = "Once upon a time, " * 8
STREAM: Final[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}
EVERY_CHUNK: Final[dict[str, Any]] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
HISTORY: Final[dict[str, Any]] = {
    "messages": [
        {"role": "developer", "content": "Answer."},
        {"role": "user", "content": [{"type": "text", "text": "47+38=?"}], "name": "a"},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
        {"role": "user", "content": "47+38=?"},
    ]
}
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "echo with log-probabilities": (
        "completions",
        {"prompt": LONG, "echo": True, "logprobs": 2, "max_tokens": 2},
    ),
    "the prompt alone": (
        "completions",
        {"prompt": [1, 2, 3, 4], "echo": True, "logprobs": 1, "max_tokens": 0},
    ),
    "prompt_logprobs": ("completions", {"prompt": LONG, "prompt_logprobs": 1, "max_tokens": 1}),
    "prompt_logprobs of a streamed chat": (
        "chat/completions",
        {**CHAT, **STREAM, "prompt_logprobs": 1},
    ),
    "token ids": ("completions", {"prompt": [[20, 21, 22], [30, 31]], "max_tokens": 3}),
    "usage in each chunk": ("chat/completions", {**CHAT, **EVERY_CHUNK}),
    "a history as clients send it": ("chat/completions", HISTORY),
    "a turn that goes on": (
        "chat/completions",
        {
            "messages": [*CHAT["messages"], {"role": "assistant", "content": "8"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ),
    "variables of the template": (
        "chat/completions",
        {**CHAT, "chat_template_kwargs": {"documents": []}, "top_p": 0, "stop": []},
    ),
    "fields of others": (
        "chat/completions",
        {**CHAT, "service_tier": "auto", "store": False, "metadata": {"a": "b"}, "chat_id": "1"},
    ),
    "a prompt that is too long": ("completions", {"prompt": "a " * 2000, "max_tokens": 1}),
    "a field of the wrong type": ("completions", {"prompt": "a", "top_p": "high"}),
}
REFUSED: Final = ("a prompt that is too long", "a field of the wrong type")
ANYTHING: Final = ("id", "created")
HEADERS: Final = ("content-type", "x-tandem-ignored-fields", "x-request-id")


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with Pages() as server:
        yield server


@pytest.fixture(scope="module")
def open_service(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that the page may call."""

    def allow(document: dict[str, Any]) -> None:
        document["spec"]["server"] = {"allowedOrigins": [pages.origin]}

    with running_service(Tandem(tmp_path_factory.mktemp("open")), TINY, change=allow) as running:
        yield running


@pytest.fixture(scope="module")
def application() -> Iterator[Served]:
    """The application without Ray and HAProxy."""
    with served(TINY, dtype="auto", max_seq_len=1024, num_kv_blocks=256) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller sees that is the same each time."""

    status: int
    headers: list[str | None]
    document: Any


def answer(url: str, path: str, body: dict[str, Any]) -> Answer:
    response = httpx.post(
        f"{url}/v1/{path}",
        json={"model": MODEL, "temperature": 0, "max_tokens": 8} | body,
        headers={"x-request-id": "the-same"},
        timeout=HANG_S,
        trust_env=False,
    )
    document = merged(response.text) if body.get("stream") else response.json()
    for name in ANYTHING:
        document.pop(name, None)
    headers = [response.headers.get(name) for name in HEADERS]
    return Answer(response.status_code, headers, document)


def merged(stream: str) -> dict[str, Any]:
    """One document of all chunks: how many tokens one has depends on who waits for whom."""
    *events, end, nothing = stream.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    usages = [chunk["usage"] for chunk in chunks]
    first = {name: value for name, value in chunks[0].items() if name != "usage"}
    return first | {"text": text, "usage": usages[-1], "all have usage": None not in usages}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_that_of_the_application(
    name: str, open_service: Service, application: Served
) -> None:
    path, body = CASES[name]
    # Of a prompt that was computed before, the usage tells what the prefix cache had.
    first, again = (
        [answer(url, path, body) for url in (open_service.url, application.url)] for _ in range(2)
    )

    assert first[0].status == (400 if name in REFUSED else 200)
    assert first[0] == first[1]
    assert again[0] == again[1]


def test_a_page_streams_a_chat_through_all_of_it(
    open_service: Service, pages: Pages, tmp_path: Path
) -> None:
    check_answer(ask(pages, open_service.url, tmp_path / "profile"))
