"""Bodies in flight: their memory, their time, what they cost to parse."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_serve.http.admission.body_reader import MAX_COST, _is_more, _number
from tandem_serve.http.admission.json_cost import (
    CONTAINER_COST,
    MEMBER_COST,
    JsonCostCounter,
    cost_upper_bound,
)
from tandem_serve.http.admission.policy import LARGE_SHARE, SMALL_BODY_BYTES, admit_bytes
from tandem_serve.testing import FakeEngine, client_of, fake_app

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
POSTS = (CHAT, COMPLETIONS, "/tokenize", "/detokenize")
MIB = 2**20
SMALL = b'{"model": "tiny", "prompt": "ab"}'


def the_error(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["message"].endswith((".", "?"))
    assert len(error["message"]) < 500
    return error


class Sender:
    """A body that comes as far as it is told to."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.has_sent = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        self.has_sent.set()
        await self.goes_on.wait()
        yield b" "


def json_cost(value: Any) -> int:
    """The cost of a value by its definition; its own comma is its parent's."""
    match value:
        case list():
            return CONTAINER_COST + max(len(value) - 1, 0) + sum(map(json_cost, value))
        case dict():
            members = sum(MEMBER_COST + json_cost(member) for member in value.values())
            return CONTAINER_COST + max(len(value) - 1, 0) + members
        case _:
            return 0


DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('\\"[]{},:x\n中😀'), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.sampled_from('\\",{x'), max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(document=DOCUMENTS, size=st.integers(1, 9), is_ascii=st.booleans())
def test_the_cost_is_that_of_the_values_however_the_bytes_come(
    document: Any, size: int, *, is_ascii: bool
) -> None:
    body = json.dumps(document, ensure_ascii=is_ascii).encode()
    counter = JsonCostCounter()

    for start in range(0, len(body), size):
        counter.feed(body[start : start + size])

    assert counter.cost == json_cost(document)
    assert counter.cost <= cost_upper_bound(body)


@given(
    num_held=st.integers(0, 2**28),
    num_more=st.integers(0, 2**24),
    num_body=st.integers(0, 2**24),
    budget=st.integers(1, 2**28),
)
def test_the_budget_is_never_passed_and_large_bodies_leave_room_for_small_ones(
    num_held: int, num_more: int, num_body: int, budget: int
) -> None:
    if admit_bytes(num_held=num_held, num_more=num_more, num_body=num_body, budget=budget):
        assert num_held + num_more <= budget
        if num_body > SMALL_BODY_BYTES:
            assert num_held + num_more <= LARGE_SHARE * budget


HOSTILE: dict[str, tuple[Callable[[int], bytes], int]] = {
    "a list for each element, and one that is none": (
        lambda n: b'{"model":"tiny","prompt":[' + b"[]," * (n // 3) + b"{}]}",
        413,
    ),
    "few enough to be parsed": (
        lambda n: b'{"model":"tiny","prompt":[' + b"[]," * 20_000 + b"{}]}" + b" " * (n - 70_000),
        400,
    ),
    "messages that are none": (
        lambda n: b'{"model":"tiny","prompt":["a"' + b',""' * (MAX_COST - 99) + b",5]}",
        400,
    ),
    "lists in lists": (lambda n: b'{"prompt":' + b"[" * (n // 2) + b"]" * (n // 2) + b"}", 413),
    "many names": (
        lambda n: b"{" + b",".join(b'"%07x":1' % i for i in range(n // 12)) + b"}",
        413,
    ),
    "one name": (lambda n: b'{"' + b"x" * n + b'":1}', 400),
    "one number": (lambda n: b'{"n":' + b"7" * n + b"}", 400),
    "the same name": (lambda n: b"{" + b'"n":1,' * (n // 6) + b'"n":1}', 413),
    "half a surrogate": (lambda n: b'{"model":"' + b"\\ud800" * (n // 6) + b'"}', 400),
    "no UTF-8": (lambda n: b'{"model":"' + b"\xff" * n + b'"}', 400),
    "another model": (lambda n: b'{"prompt":"a","model":"' + b"m" * n + b'"}', 400),
    "another role": (
        lambda n: b'{"model":"tiny","messages":[{"content":"","role":"' + b"r" * n + b'"}]}',
        400,
    ),
    "an open string": (lambda n: b'{"model":"' + b"x" * n, 400),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_body_takes_more_than_some_times_its_size(name: str) -> None:
    make, status = HOSTILE[name]
    body = make(2 * MIB)
    path = CHAT if b"messages" in body[:50] else COMPLETIONS
    app = fake_app(FakeEngine())
    async with client_of(app) as client:
        await client.post(path, content=SMALL)  # What is imported and built once.
        tracemalloc.start()
        try:
            response = await client.post(path, content=body)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert response.status_code == status
    the_error(response)
    # Twice for the client and the server, and twenty megabytes for the largest of documents.
    assert peak < 2 * len(body) + 20 * MIB
    assert app.state.http.body_budget.num_held == 0


@pytest.mark.parametrize("path", POSTS)
async def test_a_compressed_body_is_refused(path: str) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(path, content=SMALL, headers={"content-encoding": "gzip"})

    assert response.status_code == 415
    assert the_error(response)["message"] == (
        "The body has Content-Encoding 'gzip'; this server accepts plain JSON only."
    )


async def test_a_slow_body_ends_with_408() -> None:
    sender = Sender(SMALL)
    async with client_of(fake_app(FakeEngine(), body_timeout_s=0.01)) as client:
        response = await client.post(COMPLETIONS, content=sender.body())

    assert response.status_code == 408
    assert response.headers["connection"] == "close"
    assert the_error(response)["code"] == "request_timeout"


async def test_one_slow_body_too_many_ends_the_oldest_of_them() -> None:
    app = fake_app(FakeEngine(), max_link_num=1, least_body_timeout_s=0.0)
    num_readers = app.state.http.settings.max_readers
    senders = [Sender(SMALL[:5]) for _ in range(num_readers)]
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        slow = []
        for sender in senders:
            slow.append(group.create_task(client.post(COMPLETIONS, content=sender.body())))
            await sender.has_sent.wait()

        served = await client.post(COMPLETIONS, content=SMALL)
        ended = await slow[0]
        num_open = sum(not task.done() for task in slow)
        for task in slow:
            task.cancel()

    assert served.status_code == 200
    assert ended.status_code == 408
    assert num_open == num_readers - 1


async def test_a_burst_of_bodies_is_no_attack() -> None:
    app = fake_app(FakeEngine(), max_link_num=1)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        burst = [group.create_task(client.post(COMPLETIONS, content=SMALL)) for _ in range(100)]

    assert {call.result().status_code for call in burst} <= {200, 429}


async def test_a_text_that_may_fit_is_tokenized_in_pieces_until_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, lengths = FakeEngine(), []

    def encode(text: str, *, add_special_tokens: bool = True) -> list[int]:
        lengths.append(len(text))
        return [97] * (len(text) + add_special_tokens)

    monkeypatch.setattr(engine.codec, "encode", encode)
    monkeypatch.setattr(type(engine.codec), "max_token_chars", 150)
    async with client_of(fake_app(engine)) as client:
        response = await client.post(COMPLETIONS, json={"model": "tiny", "prompt": "a" * 50_000})

    assert response.status_code == 400
    assert the_error(response)["message"] == (
        "This model's maximum context length is 128 tokens, of which a prompt may have 100; prompt "
        "has 50000 characters, which make far more. Shorten it."
    )
    assert lengths == [400]


async def test_large_bodies_are_refused_while_others_hold_their_share_and_small_ones_are_not() -> (
    None
):
    app = fake_app(FakeEngine(), max_bodies_bytes=MIB, max_request_bytes=MIB // 4)
    large = b'{"model": "tiny", "prompt": "ab"' + b" " * (MIB // 4 - 40)
    first, second = Sender(large), Sender(large)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        held = [
            group.create_task(client.post(COMPLETIONS, content=s.body())) for s in (first, second)
        ]
        await first.has_sent.wait()
        await second.has_sent.wait()

        refused = await client.post(COMPLETIONS, content=large + b"}")
        announced = await client.post(
            COMPLETIONS, content=large, headers={"expect": "100-continue"}
        )
        served = await client.post(COMPLETIONS, content=SMALL)
        num_held = app.state.http.body_budget.num_held
        for sender in (first, second):
            sender.goes_on.set()
        answers = [await task for task in held]

    assert (refused.status_code, announced.status_code, served.status_code) == (503, 503, 200)
    assert refused.headers["retry-after"] == "1"
    assert the_error(refused)["code"] == "bodies_full"
    assert num_held == 2 * len(large)
    assert [answer.status_code for answer in answers] == [400, 400]  # They never close the object.
    assert app.state.http.body_budget.num_held == 0


async def test_a_caller_that_leaves_gives_its_memory_back() -> None:
    app = fake_app(FakeEngine())
    sender = Sender(SMALL)
    async with client_of(app) as client:
        call = asyncio.create_task(client.post(COMPLETIONS, content=sender.body()))
        await sender.has_sent.wait()
        assert app.state.http.body_budget.num_held == len(SMALL)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    assert app.state.http.body_budget.num_held == 0


async def test_the_memory_of_a_body_is_free_while_its_answer_is_computed() -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        call = group.create_task(client.post(COMPLETIONS, content=SMALL))
        await engine.paused.wait()
        num_held = app.state.http.body_budget.num_held
        engine.resume.set()

    assert call.result().status_code == 200
    assert num_held == 0


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, {"messages": [{}] * 2049}, "messages has 2049 messages; it must have at most 2048."),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a", "name": "n" * 257}]},
            "messages[0].name has 257 characters; it must have at most 256.",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a", "name": ["n"]}]},
            "messages[0].name is a list; it must be a string.",
        ),
        (
            COMPLETIONS,
            {"logit_bias": {str(i): 1 for i in range(301)}},
            "logit_bias has 301 token ids; it must have at most 300.",
        ),
        (
            COMPLETIONS,
            {"stop": ["s", "s" * 1025]},
            "stop[1] has 1025 characters; it must have at most 1024.",
        ),
        (
            COMPLETIONS,
            {"stop_token_ids": [1] * 1025},
            "stop_token_ids has 1025 token ids; it must have at most 1024.",
        ),
        (
            COMPLETIONS,
            {"model": "m" * 257},
            "model has 257 characters; it must have at most 256.",
        ),
        (
            CHAT,
            {"chat_template_kwargs": {str(i): 1 for i in range(65)}},
            "chat_template_kwargs has 65 members; it must have at most 64.",
        ),
        (
            CHAT,
            {"chat_template_kwargs": {"documents": [{"x": [1] * 1024}] * 5}},
            "chat_template_kwargs has more than 4096 values, those in lists and objects included; "
            "send fewer.",
        ),
        (
            "/detokenize",
            {"tokens": [1] * 129},
            "tokens has 129 token ids; it must have at most 128, the longest context of this "
            "server.",
        ),
        (
            "/tokenize",
            {"prompt": "a" * 2049},
            "This model's maximum context length is 128 tokens, and /tokenize takes at most 512; "
            "prompt has 2049 characters, which are far more. Shorten it.",
        ),
        (
            "/tokenize",
            {"prompt": "a" * 512},
            "This model's maximum context length is 128 tokens, and /tokenize takes at most 512; "
            "prompt has 513 tokens. Shorten it.",
        ),
    ],
)
async def test_lengths_have_limits(path: str, body: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {}
    if path == CHAT:
        valid = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    if path == COMPLETIONS:
        valid = {"model": "tiny", "prompt": "a"}
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(path, json=valid | body)

    assert response.status_code == 400
    assert the_error(response)["message"] == message


async def test_tokenizing_has_slots_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fake_app(FakeEngine())
    monkeypatch.setattr(app.state.http.text_admission, "_num_in_flight", 48)
    async with client_of(app) as client:
        answers = [
            await client.post("/tokenize", json={"prompt": "a"}),
            await client.post("/detokenize", json={"tokens": [97]}),
            await client.post(COMPLETIONS, content=SMALL),
        ]

    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert the_error(answers[0])["message"] == (
        "48 of at most 48 calls of /tokenize and /detokenize are running or waiting; "
        "try again in 5 s."
    )


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"messages": [{"role": "user", "content": ""}] * 129}, id="many messages"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 128}]},
            id="many parts",
        ),
        pytest.param(
            {
                "messages": [{"role": "user", "content": "a"}],
                "chat_template_kwargs": {"x": ["y" * 5000, {"z" * 5000: 1}]},
            },
            id="much for the template",
        ),
    ],
)
async def test_what_takes_long_to_render_is_rendered_beside_the_event_loop(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    engine = FakeEngine()

    def render(*_: object, **__: object) -> list[int]:
        threads.append(threading.current_thread())
        return [1]

    monkeypatch.setattr(engine.codec, "encode_chat", render)
    monkeypatch.setattr(type(engine.codec), "max_token_chars", 1000)
    async with client_of(fake_app(engine)) as client:
        for path in (CHAT, "/tokenize"):
            answer = await client.post(path, json={"model": "tiny"} | fields)
            assert answer.status_code == 200

    assert len(threads) == 2
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("digits", ["٣٣", "３３", "3٣", "²", "-3", "+3", " 3", "3_3", ""])
def test_only_ascii_digits_announce_a_length(digits: str) -> None:
    assert not _is_more(digits, 0)
    assert _number(digits) == 0


def test_a_length_may_have_leading_zeros() -> None:
    assert _is_more("0033", 32)
    assert not _is_more("0033", 33)
    assert _number("0033") == 33
