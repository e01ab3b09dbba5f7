"""Questions for a service that serves: one, all at once, or as many as it takes."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.patience import HANG_S
from tests.tiny import MAX_ANSWER_TOKENS, held_out

MODEL = "tandem-tiny"
CLIENT_NICENESS = -15


def openai_client(url: str, *, api_key: str = "none") -> AsyncOpenAI:
    """A client that asks once: a request that fails once has failed."""
    http: Any = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=HANG_S, http_client=http
    )


@contextmanager
def client_priority() -> Iterator[None]:
    """Schedule this thread before others, where it may (root).

    A client that waits for a core for ten seconds between its connection and the head of its
    request is disconnected, as a hostile one is. Measured beside 40 busy processes: 96 of 132
    requests were lost in this way, and none of 342 with this priority. Only for a load that pauses:
    one that never does would leave the others no core.
    """
    thread = 0
    before = os.getpriority(os.PRIO_PROCESS, thread)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, CLIENT_NICENESS)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread, before)


async def ask(client: AsyncOpenAI, messages: list[Any], **more: Any) -> str:
    """The answer to a conversation, greedily."""
    answer = await client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=MAX_ANSWER_TOKENS, **more
    )
    return answer.choices[0].message.content or ""


async def ask_all(
    client: AsyncOpenAI, conversations: list[Any], *, concurrency: int
) -> dict[int, str]:
    """The answers to all conversations, `concurrency` at a time."""
    slots = asyncio.Semaphore(concurrency)

    async def one(at: int) -> tuple[int, str]:
        async with slots:
            return at, await ask(client, conversations[at].messages)

    return dict(await asyncio.gather(*(one(at) for at in range(len(conversations)))))


@asynccontextmanager
async def steady_load(
    client: AsyncOpenAI, *, concurrency: int, pause_s: float = 1.0
) -> AsyncIterator[list[str]]:
    """Keep questions in flight; yields the answers so far, raises what any of them raised.

    Args:
        client: The client.
        concurrency: Callers.
        pause_s: Between an answer and the next question of a caller. Those who never pause take
            the cores that a new pod starts with.
    """
    conversations, answers, done = held_out(200), list[str](), asyncio.Event()

    async def keep_asking(at: int) -> None:
        while not done.is_set():
            answers.append(await ask(client, conversations[at % len(conversations)].messages))
            at += concurrency
            await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as group:
        for at in range(concurrency):
            group.create_task(keep_asking(at))
        try:
            yield answers
        finally:
            done.set()


async def more_answers(answers: list[str], count: int) -> None:
    """Wait until the load has moved on by `count` answers."""
    seen = len(answers)
    async with asyncio.timeout(HANG_S):
        while len(answers) < seen + count:
            await asyncio.sleep(0.05)
