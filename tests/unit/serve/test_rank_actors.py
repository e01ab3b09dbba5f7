"""The socket at which ranks connect to rank 0."""

import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from tandem_serve import rank_actors
from tandem_serve.rank_actors import _Listener


@pytest.fixture
def listener() -> Iterator[_Listener]:
    found = _Listener()
    yield found
    found.close()


def connected(listener: _Listener, hello: bytes | None) -> Connection:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(listener.name)
    connection = Connection(peer.detach())
    if hello is not None:
        connection.send_bytes(hello)
    return connection


@pytest.mark.parametrize(
    "hello",
    [None, b"", b"1 messages", b"token 1 messages", b"\xff\xfe 1 messages", b"x" * 300],
    ids=["silent", "empty", "two words", "wrong token", "no text", "too long"],
)
def test_a_stranger_keeps_no_rank_from_connecting(
    listener: _Listener, monkeypatch: pytest.MonkeyPatch, hello: bytes | None
) -> None:
    # All words that come are there already.
    monkeypatch.setattr(rank_actors, "_HELLO_TIMEOUT_S", 0)
    with (
        connected(listener, hello) as stranger,
        connected(listener, f"{listener.token} 1 messages".encode()) as rank,
    ):
        found = listener.accept(1, "messages", 30)

        assert found is not None
        with found[0] as connection:
            rank.send("hello")
            assert connection.recv() == "hello"
        with pytest.raises((EOFError, ConnectionResetError)):
            stranger.recv()
