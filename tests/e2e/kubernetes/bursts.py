"""Load in bursts: requests that queue in a replica, at a modest cost of CPU; all are counted.

Between bursts nothing is computed. Within one, the last request waits for all before it, so TTFT
grows with the size of a burst, and falls when more replicas share it.
"""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from tests.e2e.client_load import MODEL, client_priority, openai_client
from tests.tiny import held_out

MAX_TOKENS = 32
PERIOD_S = 3.0
"""Seconds from one burst to the next."""


@dataclass
class Bursts:
    """A load that can be made larger and smaller while it runs."""

    client: AsyncOpenAI
    size: int
    sent: int = 0
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, done: asyncio.Event) -> None:
        """Send bursts until `done` is set, then wait for the answers that are out."""
        while not done.is_set():
            for _ in range(self.size):
                task = asyncio.create_task(self._ask())
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            await asyncio.sleep(PERIOD_S)
        await asyncio.gather(*self._running)

    async def _ask(self) -> None:
        self.sent += 1
        try:
            await answer(self.client, self.sent)
        except OpenAIError as error:
            self.failures.append(
                f"{dt.datetime.now(dt.UTC):%H:%M:%S} {error!r} from {error.__cause__!r}"
            )
        else:
            self.answered += 1


async def answer(client: AsyncOpenAI, number: int) -> None:
    """Ask for an answer whose length is always the same.

    Raises:
        OpenAIError: there is none.
    """
    conversations = held_out(200)
    messages: list[Any] = conversations[number % len(conversations)].messages
    await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )


def client_without_reuse(url: str) -> AsyncOpenAI:
    """A client that opens a connection for each request.

    Bursts are as far apart as a server keeps a connection that is not used, and a request that
    meets its end is lost in any client that does not retry.
    """
    return openai_client(url).with_options(default_headers={"Connection": "close"})


@asynccontextmanager
async def bursts(url: str, *, size: int, may_fail: bool = False) -> AsyncIterator[Bursts]:
    """Bursts of `size` requests while the block lasts; none of them fails unless it may."""
    done = asyncio.Event()
    with client_priority():
        async with client_without_reuse(url) as client, asyncio.TaskGroup() as group:
            load = Bursts(client, size)
            group.create_task(load.run(done))
            try:
                yield load
            finally:
                done.set()
    if may_fail:
        return
    told = [*load.failures[:3], *load.failures[-3:]]
    assert not told, f"{len(load.failures)} of {load.sent} requests failed, such as {told}"
    assert load.answered == load.sent
