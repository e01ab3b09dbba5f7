"""Sends requests of given shapes to one server and returns their outcomes."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from benchmarks.serving.connection import Address, ConnectionPool
from benchmarks.serving.endpoint import Endpoint
from benchmarks.serving.http1 import NotHttp
from benchmarks.serving.outcome import Failure, Outcome
from benchmarks.serving.prompts import PromptSource, completion_body
from tandem_engine.simulate.workload import Shape


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that only has to be written to a connection."""

    shape: Shape
    data: bytes


class Client:
    """A context: its connections end with it."""

    def __init__(self, endpoint: Endpoint, prompts: PromptSource, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._prompts = prompts
        self._timeout_s = timeout_s
        self._pool = ConnectionPool(Address.of(endpoint.base_url))
        self._head = _head(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close()

    def prepare(self, shape: Shape) -> PreparedRequest:
        """Prepare a request with a new prompt, ahead of its time."""
        prompt = self._prompts.draw(shape.num_input)
        body = completion_body(self._endpoint.model, prompt, shape)
        return PreparedRequest(
            shape, b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)
        )

    async def send(self, request: PreparedRequest, *, due_s: float) -> Outcome:
        """Send a request that was due at `due_s` (perf_counter), and wait for its end."""
        times_s: list[float] = []
        try:
            async with asyncio.timeout(self._timeout_s), self._pool.take() as connection:
                reply = await connection.exchange(request.data)
                if not reply.keeps_alive:
                    connection.close()
            times_s, failure = reply.judge(request.shape)
        except TimeoutError:
            failure = Failure("timeout", f"No end within {self._timeout_s:g} s.")
        except OSError as error:
            failure = Failure("connection", error.strerror or str(error) or type(error).__name__)
        except NotHttp as error:
            failure = Failure("not HTTP", str(error))
        return Outcome(
            shape=request.shape,
            due_s=due_s,
            end_s=time.perf_counter(),
            event_times_s=times_s,
            failure=failure,
        )


def _head(endpoint: Endpoint) -> bytes:
    """Head of every request up to its length."""
    parts = urlsplit(endpoint.base_url)
    lines = [
        f"POST {parts.path}/completions HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        "User-Agent: tandem-benchmark",
    ]
    if endpoint.api_key:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    return "".join(f"{line}\r\n" for line in lines).encode()
