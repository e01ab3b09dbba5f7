"""A real server under attack, and a stream beside it that must not notice."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.figures import Figures
from tests.integration.hostile.attack import MODEL, Target

ROOT = Path(__file__).parents[3]
SECTION = "largest gap of a stream, in ms, beside …"


@dataclass(frozen=True)
class Server(Target):
    """The server, and what its process takes."""

    process: psutil.Process

    def memory(self) -> int:
        """Bytes in memory now."""
        return int(self.process.memory_info().rss)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """tandem-tiny behind the HTTP application."""
    with _started("server") as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        server = Server(port, psutil.Process(process.pid))
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
        assert server.post("/v1/completions", body).status == 200
        yield server


class Reader:
    """A caller who streams, in a process of its own; see `reader`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self) -> None:
        """Read streams from now on; returns when the first has begun."""
        self._write("begin")
        assert self._read() == "running\n"

    def end(self) -> list[dict[str, Any]]:
        """Return the observations of each stream, the one that runs included."""
        self._write("end")
        streams: list[dict[str, Any]] = json.loads(self._read())
        return streams

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="session")
def reader(server: Server) -> Iterator[Reader]:
    """The caller whom attackers are to leave alone."""
    with _started("reader", str(server.port)) as process:
        yield Reader(process)


@pytest.fixture(scope="session")
def expected(reader: Reader, pytestconfig: pytest.Config) -> str:
    """The text of the stream while nothing else happens."""
    reader.begin()
    streams = reader.end()
    assert streams[0]["has_ended"]
    assert streams[0]["num_chunks"] > 1  # A busy machine puts many tokens into one chunk.
    say_gap(pytestconfig, "nothing", streams)
    return str(streams[0]["text"])


@pytest.fixture
def stream(reader: Reader, expected: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """A stream that runs all through the test, again and again, and must always say the same."""
    reader.begin()
    yield
    streams = reader.end()
    say_gap(request.config, request.node.name, streams)
    for each in streams:
        assert (each["has_ended"], each["text"]) == (True, expected)


def say_gap(config: pytest.Config, beside: str, streams: list[dict[str, Any]]) -> None:
    """Print the largest gap of some streams when the run ends; no test judges it."""
    largest = max(stream["gap_ms"] for stream in streams)
    Figures.of(config).say(SECTION, f"{largest:8.1f}  {beside}")


def _started(name: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.integration.hostile.{name}", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
