"""Callers of every kind at a steady rate: they read to the end, leave early, or err."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from benchmarks.serving.arrivals import poisson_arrivals

_TIMEOUT_S: Final = 120.0
_MOST_IN_FLIGHT: Final = 256
_WRONG: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": -1},
    {"model": "gpt-nothing"},
    {"nonsense": 1},
    {"messages": 7},
)
_QUESTIONS: Final = ("47+38=?", "Reverse: abcdefg", "What is 12 + 30?", "Sort: 5 3 9 1")
_KINDS: Final = {"streamed": 50, "whole": 20, "choices": 5, "left early": 15, "refused": 10}
"""Kinds of callers and how many of a hundred they are."""


class Traffic:
    """Requests to one server; counts how each kind ended."""

    def __init__(self, base_url: str, model: str, seed: int) -> None:
        self._base_url = base_url
        self._model = model
        self._chance = random.Random(seed)  # noqa: S311  # load, not secrets
        self._seed = seed
        self.ends: Counter[str] = Counter()

    async def highest_rate(self, seconds: float, *, concurrency: int) -> float:
        """Requests a second with so many always in flight."""
        async with self._client() as client:
            until = time.monotonic() + seconds
            before = self.ends.total()

            async def keep_asking() -> None:
                while time.monotonic() < until:
                    await self._one(client)

            began = time.monotonic()
            await asyncio.gather(*(keep_asking() for _ in range(concurrency)))
            return (self.ends.total() - before) / (time.monotonic() - began)

    async def run(self, rate: float, seconds: float) -> None:
        """Send `rate` requests a second, at random moments, until the time is over."""
        async with self._client() as client, asyncio.TaskGroup() as group:
            slots = asyncio.Semaphore(_MOST_IN_FLIGHT)
            began = time.monotonic()
            for due_s in poisson_arrivals(rate, self._seed):
                # A caller that cannot keep up would make its late requests after the end.
                now_s = time.monotonic() - began
                if max(due_s, now_s) >= seconds:
                    return
                await asyncio.sleep(due_s - now_s)
                await slots.acquire()
                task = group.create_task(self._one(client))
                task.add_done_callback(lambda _: slots.release())

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(max_connections=_MOST_IN_FLIGHT)
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, limits=limits) as client:
            yield client

    async def _one(self, client: httpx.AsyncClient) -> None:
        (kind,) = self._chance.choices(list(_KINDS), list(_KINDS.values()))
        act: Callable[[httpx.AsyncClient], Any] = getattr(self, f"_{kind.replace(' ', '_')}")
        try:
            expected = await act(client)
        except httpx.HTTPError as error:
            self.ends[f"{kind}: {type(error).__name__}"] += 1
        else:
            self.ends[f"{kind}: {'expected' if expected else 'unexpected'}"] += 1

    async def _streamed(self, client: httpx.AsyncClient) -> bool:
        last = ""
        async with client.stream("POST", self._url, json=self._body(stream=True)) as answer:
            async for line in answer.aiter_lines():
                last = line or last
        return answer.status_code == httpx.codes.OK and last == "data: [DONE]"

    async def _whole(self, client: httpx.AsyncClient) -> bool:
        body = self._body(temperature=1.0, top_p=0.95, logprobs=True)
        return (await client.post(self._url, json=body)).is_success

    async def _choices(self, client: httpx.AsyncClient) -> bool:
        answer = await client.post(self._url, json=self._body(n=4, stop=["\n\n", "#"]))
        return answer.is_success and len(answer.json()["choices"]) == 4  # noqa: PLR2004

    async def _left_early(self, client: httpx.AsyncClient) -> bool:
        lines = self._chance.randrange(12)
        body = self._body(stream=True, ignore_eos=True, max_tokens=200)
        async with client.stream("POST", self._url, json=body) as answer:
            async for _ in answer.aiter_lines():
                lines -= 1
                if lines <= 0:
                    break
        return answer.status_code == httpx.codes.OK

    async def _refused(self, client: httpx.AsyncClient) -> bool:
        wrong = self._chance.choice(_WRONG)
        answer = await client.post(self._url, json=self._body() | wrong)
        return answer.is_client_error

    @property
    def _url(self) -> str:
        return f"{self._base_url}/chat/completions"

    def _body(self, **more: Any) -> dict[str, Any]:
        # A number in front: the prefix cache does not know the prompt.
        text = f"{self._chance.randrange(10**6)}: {self._chance.choice(_QUESTIONS)}"
        message = {"role": "user", "content": text}
        tokens = self._chance.choice((8, 32, 64))
        return {"model": self._model, "messages": [message], "max_tokens": tokens} | more


def failures(ends: Counter[str]) -> Sequence[str]:
    """Unexpected ends, with their numbers."""
    return [
        f"{end} ({count})" for end, count in sorted(ends.items()) if not end.endswith(": expected")
    ]
