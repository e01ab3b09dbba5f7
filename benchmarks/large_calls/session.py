"""A stream alone and beside a large call, in turns, as their callers see them."""

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.serving.endpoint import find_endpoint
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import result_console, write_figures
from benchmarks.serving.service import running_service
from benchmarks.serving.settings import EndpointSettings

_PROMPT: Final = "47+38="
_WARM_EVENTS: Final = 50
"""Of the stream, before the call comes."""
_ALONE_S: Final = 2.0
_TIMEOUT_S: Final = 600.0
_MS: Final = 1e3

_Events = AsyncGenerator[None, None]
_Work = Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    num_prompts: int
    num_stop_strings: int
    rounds: int
    url: str | None
    manifest: Path


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between two events of the stream, in seconds; medians over the rounds."""

    p50_s: float
    p99_s: float
    longest_s: float
    during_s: float
    """Time of the work beside."""


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show and write.

    Raises:
        BenchmarkError: the service does not start, or refuses.
    """
    load = os.getloadavg()[0]
    url = settings.url
    service = running_service(settings.manifest) if url is None else nullcontext(url)
    with service as base_url:
        endpoint = find_endpoint(base_url, EndpointSettings(url=url, manifest=settings.manifest))
        figures = asyncio.run(_Session(endpoint.base_url, endpoint.model, settings).run())
    console = result_console()
    _show(console, figures, settings, load)
    if out is not None:
        write_figures(
            out,
            load_average=load,
            settings=asdict(settings),
            figures={name: asdict(gaps) for name, gaps in figures.items()},
        )


class _Session:
    def __init__(self, base_url: str, model: str, settings: Settings) -> None:
        self._url = f"{base_url}/completions"
        self._model = model
        self._settings = settings

    async def run(self) -> dict[str, Gaps]:
        """Measure alone and beside the call in turns, behind one of each that warms up."""
        kinds: dict[str, _Work] = {
            "alone": lambda _: asyncio.sleep(_ALONE_S),
            "beside the call": self._call,
        }
        rounds: dict[str, list[Gaps]] = {name: [] for name in kinds}
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            for turn in range(self._settings.rounds + 1):
                for name, work in kinds.items():
                    gaps = await self._gaps(client, work)
                    if turn:
                        rounds[name].append(gaps)
        return {name: _middle(gaps) for name, gaps in rounds.items()}

    async def _gaps(self, client: httpx.AsyncClient, work: _Work) -> Gaps:
        """Stream while `work` is done; an answer that ends before it is followed by another."""
        async with aclosing(self._stream(client)) as warming:
            for _ in range(_WARM_EVENTS):
                await anext(warming, None)
            began_s = time.perf_counter()
            beside = asyncio.create_task(work(client))
            gaps_s = await _gaps_until(beside, warming)
        while not beside.done():
            async with aclosing(self._stream(client)) as stream:
                await anext(stream, None)
                gaps_s += await _gaps_until(beside, stream)
        await beside
        if not gaps_s:
            raise BenchmarkError("The server sent no events of its stream; measure another one.")
        return _figures(gaps_s, time.perf_counter() - began_s)

    async def _stream(self, client: httpx.AsyncClient) -> _Events:
        """Yield for each event of an answer."""
        body = {"prompt": _PROMPT, "max_tokens": 2000, "stream": True, "ignore_eos": True}
        async with client.stream("POST", self._url, json=self._body(body)) as answer:
            await _check(answer)
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield

    async def _call(self, client: httpx.AsyncClient) -> None:
        settings = self._settings
        body: dict[str, Any] = {"prompt": [_PROMPT] * settings.num_prompts, "max_tokens": 1}
        if settings.num_stop_strings:
            body["stop"] = [f"stop {index}" for index in range(settings.num_stop_strings)]
        await _check(await client.post(self._url, json=self._body(body)))

    def _body(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self._model, "temperature": 0.0, **body}


async def _check(answer: httpx.Response) -> None:
    if answer.is_error:
        text = (await answer.aread()).decode(errors="replace")[:300]
        raise BenchmarkError(f"The server answers with status {answer.status_code}: {text}")


async def _gaps_until(done: asyncio.Future[None], stream: _Events) -> list[float]:
    """Times between events of a stream in seconds, to the first one after `done`, or its end."""
    gaps_s: list[float] = []
    last_s = time.perf_counter()
    async for _ in stream:
        now_s = time.perf_counter()
        gaps_s.append(now_s - last_s)
        last_s = now_s
        if done.done():
            break
    return gaps_s


def _figures(gaps_s: list[float], during_s: float) -> Gaps:
    ordered = sorted(gaps_s)
    return Gaps(
        p50_s=median(ordered),
        p99_s=ordered[math.ceil(0.99 * len(ordered)) - 1],
        longest_s=ordered[-1],
        during_s=during_s,
    )


def _middle(rounds: list[Gaps]) -> Gaps:
    return Gaps(*(median(values) for values in zip(*map(_values, rounds), strict=True)))


def _values(gaps: Gaps) -> tuple[float, ...]:
    return gaps.p50_s, gaps.p99_s, gaps.longest_s, gaps.during_s


def _show(console: Console, figures: dict[str, Gaps], settings: Settings, load: float) -> None:
    table = Table(title="Gaps of a stream, in ms", title_justify="left", box=None)
    table.add_column("")
    for name in ("P50", "P99", "longest", "in all s"):
        table.add_column(name, justify="right")
    for name, gaps in figures.items():
        times = (gaps.p50_s, gaps.p99_s, gaps.longest_s)
        table.add_row(name, *(f"{each * _MS:.1f}" for each in times), f"{gaps.during_s:.1f}")
    console.print(table)
    console.print(
        f"The call: {settings.num_prompts} prompts, {settings.num_stop_strings} stop strings"
    )
    console.print(f"Load average at the start: {load:.1f}")
