"""Bodies as programs send them: unknown fields, and histories."""

import logging
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_serve.http.openai.leniency import HEADER, MAX_NAMED, IgnoredFields, drop_unknown
from tandem_serve.http.openai.protocol import ChatRequest
from tandem_serve.testing import FakeEngine, client_of, fake_app

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"role": "user", "content": "hi"}


async def post(path: str, engine: FakeEngine, **fields: Any) -> httpx.Response:
    required = {"messages": [HELLO]} if path == CHAT else {"prompt": "hi"}
    async with client_of(fake_app(engine)) as client:
        return await client.post(path, json={"model": "tiny", **required, **fields})


async def prompt_of(messages: list[Any]) -> str:
    """Return the conversation as the template got it."""
    engine = FakeEngine()
    response = await post(CHAT, engine, messages=messages)
    assert response.status_code == 200, response.text
    return engine.codec.decode(engine.submitted[0].prompt_token_ids)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_unknown_fields_are_ignored_and_named(path: str, *, is_stream: bool) -> None:
    engine = FakeEngine()

    response = await post(path, engine, stream=is_stream, session=7, temprature=2.0)

    assert response.status_code == 200
    assert response.headers[HEADER] == "session, temprature"
    assert engine.submitted[0].sampling.temperature == 1.0


async def test_known_fields_alone_are_not_named() -> None:
    response = await post(CHAT, FakeEngine(), user="me", top_k=2)

    assert HEADER not in response.headers


@pytest.mark.parametrize("is_strict", [False, True])
async def test_unknown_fields_that_are_null_are_as_good_as_absent(*, is_strict: bool) -> None:
    body = {
        "model": "tiny",
        "stream": True,
        "stream_options": {"chunk": None},
        "messages": [HELLO | {"id": None, "tool_calls": None}],
        "session": None,
    }

    async with client_of(fake_app(FakeEngine(), strict=is_strict)) as client:
        response = await client.post(CHAT, json=body)

    assert response.status_code == 200, response.text
    assert HEADER not in response.headers


async def test_unknown_fields_below_the_top_are_named_with_their_place() -> None:
    response = await post(
        CHAT,
        FakeEngine(),
        stream=True,
        stream_options={"include_usage": True, "chunk": 4},
        messages=[HELLO | {"id": 1}, HELLO | {"id": 2, "timestamp": 3}],
    )

    assert response.status_code == 200
    assert response.headers[HEADER] == ("stream_options.chunk, messages[].id, messages[].timestamp")


async def test_an_error_names_ignored_fields_too() -> None:
    response = await post(CHAT, FakeEngine(), temprature=2.0, top_p=7)

    assert response.status_code == 400
    assert response.headers[HEADER] == "temprature"


async def test_a_field_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = fake_app(FakeEngine())
    body = {"model": "tiny", "prompt": "secret", "session": "secret"}
    with caplog.at_level(logging.INFO, "tandem_serve"):
        async with client_of(app) as client:
            for _ in range(3):
                await client.post(COMPLETIONS, json=body)

    [record] = caplog.records
    assert "unknown field session" in record.getMessage()
    assert "secret" not in record.getMessage()


def test_callers_cannot_fill_the_memory_with_names() -> None:
    seen = IgnoredFields()

    for number in range(1000):
        seen.log([str(number)])

    assert len(seen._logged) == 256


@given(st.dictionaries(st.text(max_size=80), st.integers(), max_size=40))
def test_names_fit_into_a_header_whatever_they_are(unknown: dict[str, int]) -> None:
    unknown = {name: value for name, value in unknown.items() if name not in ChatRequest.known()}

    kept, names = drop_unknown(ChatRequest, {"model": "tiny", **unknown})

    assert kept == {"model": "tiny"}
    assert len(names) <= MAX_NAMED
    header = ", ".join(names)
    assert header.isascii()
    assert not {*header} & {*map(chr, range(32))}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param({"content": None}, "", id="null"),
        pytest.param({}, "", id="no content"),
        pytest.param({"content": "a", "tool_calls": None, "refusal": None}, "a", id="openai's"),
        pytest.param({"content": "a", "tool_calls": [], "audio": None}, "a", id="empty lists"),
        pytest.param({"content": None, "refusal": "no"}, "no", id="a refusal"),
        pytest.param({"content": "a", "name": "bot"}, "a", id="a name"),
        pytest.param({"content": "a", "timestamp": 1, "model": "m"}, "a", id="unknown keys"),
        pytest.param({"content": [{"type": "text", "text": "a"}]}, "a", id="a part"),
        pytest.param({"content": ["a", {"type": "output_text", "text": "b"}]}, "a\nb", id="mixed"),
        pytest.param({"content": [{"type": "refusal", "refusal": "no"}]}, "no", id="refusing part"),
        pytest.param({"content": []}, "", id="no parts"),
    ],
)
async def test_an_assistants_turn_comes_back_as_clients_keep_it(
    message: dict[str, Any], text: str
) -> None:
    prompt = await prompt_of([HELLO, {"role": "assistant", **message}, HELLO])

    assert prompt == f"user:hi;assistant:{text};user:hi;assistant:"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_to_the_template(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    rendered: list[Any] = []
    encode_chat = engine.codec.encode_chat

    def record(messages: Any, **settings: Any) -> list[int]:
        rendered.extend(messages)
        return encode_chat(messages, **settings)

    monkeypatch.setattr(engine.codec, "encode_chat", record)
    turn = {"role": "assistant", "content": "a", field: "because"}
    response = await post(CHAT, engine, messages=[HELLO, turn, HELLO | {field: "x"}])

    assert response.status_code == 200
    assert rendered[1] == {"role": "assistant", "content": "a", "reasoning_content": "because"}
    assert rendered[2] == HELLO


async def test_long_reasoning_is_too_long() -> None:
    turn = {"role": "assistant", "content": "", "reasoning_content": "a" * 1000}

    response = await post(CHAT, FakeEngine(), messages=[HELLO, turn, HELLO])

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_the_developer_is_the_system() -> None:
    assert await prompt_of([{"role": "developer", "content": "x"}]) == "system:x;assistant:"


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "auto"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": None, "tool_choice": "none"},
        {"function_call": "auto"},
        {"stop": []},
        {"store": True, "service_tier": "flex", "metadata": {"a": "b"}, "user": "u"},
        {"prediction": {"type": "content", "content": "x"}},
        {"modalities": ["text"], "response_format": {"type": "text"}},
    ],
    ids=str,
)
async def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    response = await post(CHAT, FakeEngine(), **fields)

    assert response.status_code == 200
    assert HEADER not in response.headers


async def test_top_p_of_0_takes_the_likeliest() -> None:
    engine = FakeEngine()

    assert (await post(CHAT, engine, top_p=0)).status_code == 200
    assert engine.submitted[0].sampling.is_greedy
