"""Responses, however the network cuts them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.http1 import NotHttp, ResponseParser
from benchmarks.serving.outcome import Failure
from benchmarks.serving.reply import Reply
from tandem_engine.simulate.workload import Shape

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PART = {"choices": [{"index": 0, "text": "ü", "finish_reason": None}], "usage": None}
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
SHAPE = Shape(5, 3)


def events(*documents: dict[str, Any], done: bool = True, end: bytes = b"\n\n") -> list[bytes]:
    lines = [b"data: " + json.dumps(document).encode() for document in documents]
    return [line + end for line in [*lines, *([b"data: [DONE]"] if done else [])]]


def chunked(pieces: list[bytes]) -> bytes:
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return b"".join(framed) + b"0\r\n\r\n"


def read(data: bytes) -> Reply:
    reply = Reply()
    reply.feed(data, 1.0)
    return reply


@given(st.data())
def test_a_stream_is_the_same_however_it_is_cut(data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
    response = HEAD + chunked(events(PART, PART, PART, USAGE, end=end))
    cuts = data.draw(st.lists(st.integers(0, len(response)), max_size=30))
    cuts_at = sorted({0, len(response), *cuts})
    reply = Reply()

    for now_s, (begin, stop) in enumerate(pairwise(cuts_at)):
        assert not reply.is_complete
        reply.feed(response[begin:stop], now_s)

    times_s, failure = reply.judge(SHAPE)
    assert reply.is_complete
    assert reply.keeps_alive
    assert failure is None
    assert len(times_s) == 3
    assert times_s == sorted(times_s)


def test_an_event_has_the_time_at_which_its_line_was_complete() -> None:
    first, *others = events(PART, PART, USAGE)
    reply = Reply()

    reply.feed(HEAD, 1.0)
    reply.feed(b"%x\r\n" % len(first) + first[:7], 2.0)
    reply.feed(first[7:] + b"\r\n", 3.0)
    reply.feed(chunked(others), 4.0)

    assert reply.judge(SHAPE) == ([3.0, 4.0], None)


def test_usage_may_come_with_the_last_part() -> None:
    last = PART | {"usage": USAGE["usage"]}

    times_s, failure = read(HEAD + chunked(events(PART, last))).judge(SHAPE)

    assert (len(times_s), failure) == (2, None)


ERROR = {"error": {"message": "The engine stopped.", "code": "engine_stopped"}}


@pytest.mark.parametrize(
    ("pieces", "reason", "message"),
    [
        (events(PART, done=False), "stream cut short", "without [DONE]"),
        (events(PART, ERROR, done=False), "error in the stream", "The engine stopped."),
        (events(PART, ERROR), "error in the stream", "The engine stopped."),
        (events(PART, PART), "no usage", "include_usage"),
        (events(USAGE), "no tokens", "no event brought one"),
        ([], "stream cut short", "without [DONE]"),
    ],
)
def test_a_stream_that_is_not_right_fails(pieces: list[bytes], reason: str, message: str) -> None:
    _, failure = read(HEAD + chunked(pieces)).judge(SHAPE)

    assert failure is not None
    assert failure.reason == reason
    assert message in failure.message


def test_another_number_of_tokens_than_requested_fails() -> None:
    _, failure = read(HEAD + chunked(events(PART, USAGE))).judge(Shape(5, 4))

    message = "Asked for 5 in and 4 out; the usage says 5 and 3."
    assert failure == Failure("wrong number of tokens", message)


def test_a_refusal_gives_status_and_message() -> None:
    body = json.dumps({"error": {"message": "All slots are taken."}}).encode()
    head = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n" % len(body)

    reply = read(head + body)

    assert reply.is_complete
    assert reply.judge(SHAPE) == ([], Failure("HTTP 429", "All slots are taken."))


def test_a_refusal_in_plain_text_is_shown_as_it_is() -> None:
    reply = read(b"HTTP/1.0 502 Bad Gateway\r\n\r\nno backend\n")
    reply.end_of_connection()

    assert reply.is_complete
    assert not reply.keeps_alive
    assert reply.judge(SHAPE) == ([], Failure("HTTP 502", "no backend"))


def test_a_connection_that_is_to_be_closed_is_not_kept() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 204 No Content\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    assert parser.is_complete
    assert not parser.keeps_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 what\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttp):
        ResponseParser().feed(data)
