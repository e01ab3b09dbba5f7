"""Requests of the caller to the supervisor: one JSON line each way over a socket in the folder.

A pid of the sandbox means nothing outside, so signals are sent by the one who is inside.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tools.cluster.errors import ClusterError
from tools.cluster.parts import Parts
from tools.cluster.state import MachineStatus, Phase

_TIMEOUT_S: Final = 30.0
_ROUND_S: Final = 0.5


@contextmanager
def listen(path: Path) -> Iterator[socket.socket]:
    """The supervisor's end, at `path`."""
    with _short(path) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        path.chmod(0o600)
        listener.listen()
        listener.settimeout(_ROUND_S)
        yield listener


def serve(listener: socket.socket, parts: Parts, *, on_change: Callable[[], None]) -> None:
    """Answer requests for ever; every round also notes which parts have ended."""
    known = _states(parts)
    while True:
        with suppress(TimeoutError):
            client, _ = listener.accept()
            with client, suppress(OSError):
                client.settimeout(_TIMEOUT_S)
                _serve_one(client, parts)
        states = _states(parts)
        if states != known:
            known = states
            on_change()


def _states(parts: Parts) -> dict[str, str]:
    return {name: status.state for name, status in parts.statuses().items()}


def _serve_one(client: socket.socket, parts: Parts) -> None:
    with client.makefile("rw", encoding="utf-8") as stream:
        line = stream.readline()
        if not line:
            return
        request = json.loads(line)
        try:
            answer = _answer(request["do"], request.get("part", ""), parts)
        except ClusterError as error:
            answer = {"error": str(error)}
        stream.write(json.dumps(answer) + "\n")


def _answer(verb: str, part: str, parts: Parts) -> dict[str, Any]:
    if verb == "status":
        status = MachineStatus(phase=Phase.READY, parts=parts.statuses())
        return {"status": status.to_json()}
    if verb == "start":
        parts.start(part)
    else:
        parts.signal(part, verb)
    return {}


def ask(path: Path, verb: str, part: str = "") -> dict[str, Any]:
    """The caller's end: have the supervisor at `path` do something.

    Raises:
        ClusterError: the supervisor does not answer, or refuses.
    """
    request = json.dumps({"do": verb, "part": part}) + "\n"
    try:
        with _short(path) as address, socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_TIMEOUT_S)
            client.connect(address)
            client.sendall(request.encode())
            with client.makefile(encoding="utf-8") as stream:
                answer: dict[str, Any] = json.loads(stream.readline() or "{}")
    except OSError as error:
        raise ClusterError(f"the supervisor at {path} does not answer: {error}") from error
    if "error" in answer:
        raise ClusterError(answer["error"])
    return answer


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for the socket `path` that fits into the 107 bytes that Linux allows."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
