"""Attacks: bodies, and connections that are used otherwise than clients use them."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

MODEL: Final = "tandem-tiny"
MAX_LINK_NUM: Final = 16
SLOTS: Final = 3 * MAX_LINK_NUM
MAX_SEQ_LEN: Final = 1024
MAX_BODY: Final = 4 * 2**20

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """Answer of the server: status 0 means nothing at all."""

    status: int
    body: bytes = b""

    @property
    def message(self) -> str:
        """The sentence of an error in OpenAI's form."""
        return str(json.loads(self.body)["error"]["message"])


@dataclass(frozen=True)
class Target:
    """A server under attack."""

    port: int

    def connect(self) -> socket.socket:
        """A connection of an attacker, who waits for an answer as long as it takes."""
        return socket.create_connection(("127.0.0.1", self.port))

    def post(
        self, path: str, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and read its answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.opened(path, len(data), headers) as connection:
            with suppress(ConnectionError):
                connection.sendall(data)
            return read_answer(connection)

    @contextmanager
    def opened(
        self, path: str, length: int | None, headers: Mapping[str, str] | None = None
    ) -> Iterator[socket.socket]:
        """A connection whose request has no body yet; `length` None: in chunks, of any length."""
        size = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": length}
        fields = {"Host": "tandem", "Content-Type": "application/json", **size, **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with self.connect() as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode())
            yield connection


def read_answer(connection: socket.socket) -> Answer:
    """One answer of known length, or what came of it."""
    received = b""
    with suppress(ConnectionError):
        while not _is_whole(received) and (piece := connection.recv(65536)):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return Answer(int(head.split(b" ")[1]), body) if head.startswith(b"HTTP/1.1 ") else Answer(0)


def _is_whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(body) >= int(value)
    return False


def filled(before: str, unit: str, after: str, size: int = MAX_BODY) -> bytes:
    """A body of about `size` bytes whose middle says one thing again and again."""
    middle = (size - len(before) - len(after)) // len(unit)
    return before.encode() + unit.encode() * middle + after.encode()


PROMPT: Final = f'{{"model":"{MODEL}","max_tokens":1,"prompt":'
MESSAGES: Final = f'{{"model":"{MODEL}","max_tokens":1,"messages":'
BODIES: Final[Mapping[str, tuple[str, bytes, int]]] = {
    "a list for each element": (COMPLETIONS, filled(PROMPT + "[", "[],", "{}]}"), 413),
    "as many lists as are parsed": (COMPLETIONS, filled(PROMPT + "[", "[],", "{}]}", 65_000), 400),
    "objects": (COMPLETIONS, filled(PROMPT + "[", '{"a":1},', "1]}"), 413),
    "deep lists": (COMPLETIONS, PROMPT.encode() + b"[" * MAX_BODY, 413),
    "deep as allowed": (
        COMPLETIONS,
        filled(PROMPT + "[", "[" * 190 + "]" * 190 + ",", "1]}", 50_000),
        400,
    ),
    "as many ids as are parsed": (
        COMPLETIONS,
        filled(PROMPT + "[", "257,", "1]}", 2**20 - 2**12),
        400,
    ),
    "as many names as are parsed": (
        COMPLETIONS,
        b"{" + b",".join(b'"%x":1' % i for i in range(32_000)) + b"}",
        400,
    ),
    "texts that are empty": (COMPLETIONS, filled(PROMPT + "[", '"",', '""]}', 700_000), 400),
    "the longest text": (COMPLETIONS, filled(PROMPT + '"', "\\u4e2d", '"}'), 400),
    "the longest escapes": (COMPLETIONS, filled(PROMPT + '"', "\\n", '"}'), 400),
    "the longest of commas": (COMPLETIONS, filled(PROMPT + '"', "[,{:", '"}'), 400),
    "a number of a megabyte": (COMPLETIONS, filled('{"n":', "7", "}"), 400),
    "half a surrogate": (COMPLETIONS, filled(PROMPT + '"', "\\ud800", '"}'), 400),
    "no UTF-8": (COMPLETIONS, PROMPT.encode() + b'"' + b"\xff" * 1_000_000 + b'"}', 400),
    "the same name": (COMPLETIONS, filled("{", '"n":128,', '"n":1}', 250_000), 400),
    "messages that are none": (CHAT, filled(MESSAGES + "[", "5,", "5]}", 500_000), 400),
    "a role of megabytes": (CHAT, filled(MESSAGES + '[{"role":"', "r", '"}]}'), 400),
    "a name of megabytes": (CHAT, filled('{"', "x", '":1}'), 400),
    "no JSON": (CHAT, b"\x00" * MAX_BODY, 400),
    "too long": (CHAT, b" " * (MAX_BODY + 1), 413),
}
"""Path, body, and the status that it deserves."""
