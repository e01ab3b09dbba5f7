"""Answers without a reader are not computed: deadlines and callers that leave, real HTTP."""

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.hostile.attack import COMPLETIONS, MODEL, Target, read_answer
from tests.integration.hostile.conftest import Server
from tests.patience import HANG_S

pytestmark = pytest.mark.usefixtures("stream")

LONG: dict[str, Any] = {
    "model": MODEL,
    "prompt": "<|user|>Reverse: abcd<|end|><|assistant|>",
    "max_tokens": 1000,
    "ignore_eos": True,
    "temperature": 0,
    "skip_special_tokens": False,
}
LATE: dict[str, Any] = LONG | {"max_tokens": 400}
"""Of an answer that is asked for again and again, until a deadline is too early for it."""
HEADER = "X-Request-Timeout"
DEADLINES_S = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.12)
"""The longest that an answer misses is the one to test, on a fast machine as on a slow one."""
STREAM_ROWS = 1
"""The stream beside the attack."""


def value(server: Target, name: str) -> float:
    """A metric of the server."""
    with server.connect() as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: tandem\r\n\r\n")
        text = read_answer(connection).body.decode()
    found = re.search(rf"^tandem_{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def wait_until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait for a condition; fails by a limit that no working server comes near."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def is_idle(server: Target) -> bool:
    """True when no request runs or waits but the stream, of which one or none may be there."""
    running = value(server, "num_requests_running")
    return running <= STREAM_ROWS and value(server, "num_requests_waiting") <= STREAM_ROWS


def expired(server: Target) -> float:
    return value(server, "request_expired_total")


@pytest.mark.parametrize("n", [1, 3])
def test_an_answer_that_is_not_done_in_time_is_a_504(server: Server, n: int) -> None:
    before = expired(server)
    answer = next(
        answer
        for deadline in DEADLINES_S
        if (answer := server.post(COMPLETIONS, LATE | {"n": n}, {HEADER: f"{deadline}"})).status
        != 200
    )

    assert answer.status == 504
    error = json.loads(answer.body)["error"]
    assert error["code"] == "deadline_exceeded"
    assert re.match(
        r"The request exceeded its deadline of \d+(\.\d+)? s in the engine", answer.message
    )
    wait_until(lambda: is_idle(server), lambda: value(server, "num_requests_running"))
    assert expired(server) - before == n


def test_a_stream_that_is_not_done_in_time_ends_with_an_error(server: Server) -> None:
    received = next(
        received
        for deadline in DEADLINES_S
        if b"data: [DONE]" not in (received := stream_of_long(server, deadline))
    )
    events = [line for line in received.split(b"\n") if line.startswith(b"data: ")]

    assert received.startswith(b"HTTP/1.1 200")
    assert json.loads(events[-1][6:])["error"]["code"] == "deadline_exceeded"
    assert len(events) > 1
    wait_until(lambda: is_idle(server), lambda: value(server, "num_requests_running"))


def stream_of_long(server: Server, deadline_s: float) -> bytes:
    """All that is received of a long stream, to its end."""
    data = json.dumps(LATE | {"stream": True}).encode()
    fields = {HEADER: f"{deadline_s}", "Connection": "close"}
    with server.opened(COMPLETIONS, len(data), fields) as stream:
        stream.sendall(data)
        return b"".join(iter(lambda: stream.recv(65536), b""))


def test_requests_past_their_deadline_in_the_queue_are_never_computed(server: Server) -> None:
    body = json.dumps(LONG | {"n": 2}).encode()
    with ExitStack() as held:
        # 24 sequences run at once.
        for _ in range(13):
            held.enter_context(server.opened(COMPLETIONS, len(body))).sendall(body)
        wait_until(
            lambda: value(server, "num_requests_waiting") >= 1,
            lambda: value(server, "num_requests_running"),
        )
        late = [
            held.enter_context(server.opened(COMPLETIONS, len(body), {HEADER: "0.3"}))
            for _ in range(8)
        ]
        for connection in late:
            connection.sendall(body)
        answers = [read_answer(connection) for connection in late]

    assert {answer.status for answer in answers} == {504}
    assert all("it waited in the queue" in answer.message for answer in answers)
    wait_until(lambda: is_idle(server), lambda: value(server, "num_requests_running"))
    assert server.post(COMPLETIONS, LONG | {"max_tokens": 1}, {HEADER: "60"}).status == 200


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "1e400", "65536"])
def test_a_time_that_is_none_is_a_400(server: Server, wrong: str) -> None:
    answer = server.post(COMPLETIONS, LONG, {HEADER: wrong})

    assert answer.status == 400
    assert answer.message.startswith(f"{HEADER} is '{wrong}'; it must be a number of seconds")


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("num_calls", "metric", "least"),
    [(1, "num_requests_running", 3), (12, "num_requests_waiting", 2)],
    ids=["running", "queued"],
)
def test_callers_that_disconnect_free_their_blocks(
    server: Server, num_calls: int, metric: str, least: int, *, is_stream: bool
) -> None:
    before = value(server, "request_aborted_total")
    body = json.dumps(LONG | {"stream": is_stream, "n": 3}).encode()
    with ExitStack() as held:
        for _ in range(num_calls):
            connection = held.enter_context(server.opened(COMPLETIONS, len(body)))
            connection.sendall(body)
        wait_until(
            lambda: value(server, metric) >= least,
            lambda: value(server, metric),
        )

    wait_until(lambda: is_idle(server), lambda: value(server, "num_requests_running"))
    wait_until(
        lambda: value(server, "request_aborted_total") - before == 3 * num_calls,
        lambda: value(server, "request_aborted_total") - before,
    )
