"""Hostile callers of the HTTP interface, beside a stream that must not notice."""

import asyncio
import json
import select
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from tests.integration.hostile.attack import (
    BODIES,
    CHAT,
    COMPLETIONS,
    MAX_BODY,
    MAX_LINK_NUM,
    MODEL,
    PROMPT,
    SLOTS,
    Target,
    filled,
    read_answer,
)
from tests.integration.hostile.conftest import Server

pytestmark = pytest.mark.usefixtures("stream")

MIB = 2**20
SMALL = {"model": MODEL, "prompt": "a", "max_tokens": 1}
NUM_READERS = MAX_LINK_NUM + 32
MANY = 2


def is_served(server: Target) -> bool:
    return server.post(COMPLETIONS, SMALL).status == 200


@pytest.mark.parametrize("name", BODIES)
def test_a_body(server: Server, name: str) -> None:
    path, body, status = BODIES[name]

    answer = server.post(path, body)

    assert answer.status == status
    assert len(answer.message) < 600


def test_many_bodies_at_once(server: Server) -> None:
    before = server.memory()
    bodies = [body for body in BODIES.values() for _ in range(MANY)]

    with ThreadPoolExecutor(32) as attackers:
        answers = list(attackers.map(lambda each: server.post(each[0], each[1]), bodies))

    for answer, (_, _, status) in zip(answers, bodies, strict=True):
        assert answer.status in {status, 503}
    assert server.memory() - before < 400 * MIB
    assert is_served(server)


def test_bodies_that_announce_much_and_stop(server: Server) -> None:
    large = filled(PROMPT + '"', "a", '"')
    with ExitStack() as held:
        connections = []
        for _ in range(40):
            connections.append(held.enter_context(server.opened(COMPLETIONS, MAX_BODY)))
            with suppress(ConnectionError):
                connections[-1].sendall(large[: MAX_BODY - 1])
        assert is_served(server)
        for connection in connections:
            with suppress(ConnectionError):
                connection.sendall(b"}" * (MAX_BODY - len(large[: MAX_BODY - 1])))
        statuses = [read_answer(connection).status for connection in connections]

    # Half of 128 MiB is for large ones.
    assert statuses.count(503) >= 40 - 64 * MIB // MAX_BODY
    assert set(statuses) == {400, 503}


def test_bodies_that_come_slowly(server: Server) -> None:
    with ExitStack() as held:
        slow = []
        for _ in range(2 * NUM_READERS):
            slow.append(held.enter_context(server.opened(COMPLETIONS, 100)))
            slow[-1].sendall(b'{"model":')
        while not select.select(slow[:1], [], [], 0)[0]:
            assert is_served(server)
        first = read_answer(slow[0])

    assert first.status == 408


def test_a_body_without_end(server: Server) -> None:
    piece = b"10000\r\n" + b" " * 2**16 + b"\r\n"
    with server.opened(COMPLETIONS, None) as connection:
        with suppress(ConnectionError):
            for _ in range(2 * 68 * 16):  # Twice what is read of it.
                connection.sendall(piece)
        answer = read_answer(connection)

    # The connection may break before the answer is read: more was sent than the server reads.
    assert answer.status in {413, 0}
    assert is_served(server)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
def test_a_compressed_body(server: Server, encoding: str) -> None:
    answer = server.post(COMPLETIONS, SMALL, {"Content-Encoding": encoding})

    assert answer.status == 415


def test_more_sequences_than_there_can_be(server: Server) -> None:
    answer = server.post(COMPLETIONS, SMALL | {"prompt": ["a"] * 3000, "n": 128})

    assert answer.status == 400
    assert answer.message == (
        "prompt has 3000 prompts and n is 128, which makes 384000 sequences; this server takes "
        f"at most {SLOTS} sequences at once, three times its maxLinkNum of {MAX_LINK_NUM}. "
        "Lower n."
    )


async def test_as_many_sequences_as_there_can_be_from_every_client(server: Server) -> None:
    wide = SMALL | {"prompt": ["a"] * 3, "n": SLOTS // 4, "max_tokens": 64, "temperature": 1}

    answers = await asyncio.gather(
        *(asyncio.to_thread(server.post, COMPLETIONS, wide) for _ in range(12))
    )

    assert {answer.status for answer in answers} == {200, 429}
    assert is_served(server)


def test_thousands_of_messages(server: Server) -> None:
    empty = {"role": "user", "content": ""}
    for path in (CHAT, "/tokenize"):
        too_many = server.post(path, {"model": MODEL, "messages": [empty] * 20_000})
        most = server.post(path, {"model": MODEL, "messages": [empty] * 2000})

        assert too_many.status == 413  # 20,000 × (an object and two names).
        assert most.status == (400 if path == CHAT else 200)


def test_texts_to_tokenize_from_every_client(server: Server) -> None:
    text = {"model": MODEL, "prompt": "中" * 1300, "return_token_strs": True}
    tokens = {"model": MODEL, "tokens": list(range(256)) * 4}
    kwargs = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a"}],
        "chat_template_kwargs": {"x": ["y" * 10] * 4000},
    }
    calls = [("/tokenize", text), ("/detokenize", tokens), ("/tokenize", kwargs)] * 30

    with ThreadPoolExecutor(64) as callers:
        answers = list(callers.map(lambda each: server.post(*each), calls))

    assert {answer.status for answer in answers} <= {200, 429}
    assert server.post("/tokenize", filled(PROMPT + '"', "a", '"}')).status == 400
    assert server.post("/detokenize", json.dumps({"tokens": [1] * 200_000}).encode()).status == 400
