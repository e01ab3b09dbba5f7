"""Runs loads: warm-up, then the closed or the open loop."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import cycle, islice, repeat, takewhile
from typing import Final, assert_never

from benchmarks.serving.client import Client, PreparedRequest
from benchmarks.serving.outcome import Outcome
from benchmarks.serving.plan import ClosedLoop, Load, OpenLoop, shapes_of
from benchmarks.serving.progress import Progress
from benchmarks.serving.statistics import Measurement
from tandem_engine.simulate.workload import Shape

_WARMUP_OF_OPEN_LOOP: Final = 4
_PAUSE_AFTER_FAILURE_S: Final = 0.1
"""Keeps a caller that is refused at once from retrying in a busy loop."""


async def run_load(
    load: Load, client: Client, *, num_warmup: int | None, progress: Progress
) -> Measurement:
    """Warm the server up for a load, then measure it."""
    concurrency = _concurrency(load)
    progress.begin_warmup(load)
    await _warm_up(load, client, concurrency if num_warmup is None else num_warmup, concurrency)
    outcomes: list[Outcome] = []

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        progress.note(outcome)

    progress.begin(load)
    cpu_s, begin_s = time.process_time(), time.perf_counter()
    match load:
        case ClosedLoop():
            await _run_closed(load, client, note)
        case OpenLoop():
            await _run_open(load, client, note)
        case _:
            assert_never(load)
    return Measurement(
        name=load.name,
        outcomes=outcomes,
        wall_s=max((outcome.end_s for outcome in outcomes), default=begin_s) - begin_s,
        client_cpu_s=time.process_time() - cpu_s,
        num_clipped=load.num_clipped if isinstance(load, OpenLoop) else 0,
    )


def _concurrency(load: Load) -> int:
    match load:
        case ClosedLoop():
            return load.concurrency
        case OpenLoop():
            return load.max_in_flight or _WARMUP_OF_OPEN_LOOP
        case _:
            assert_never(load)


async def _warm_up(load: Load, client: Client, num_requests: int, concurrency: int) -> None:
    """Send the load's first requests, not to be counted."""
    shapes = islice(cycle(shapes_of(load)), num_requests)
    await _call_together(shapes, client, concurrency, lambda _: None)


async def _run_closed(load: ClosedLoop, client: Client, note: Callable[[Outcome], None]) -> None:
    end_s = time.perf_counter() + load.duration_s
    shapes = islice(repeat(load.shape), load.num_requests)
    in_time = takewhile(lambda _: time.perf_counter() < end_s, shapes)
    await _call_together(in_time, client, load.concurrency, note)


async def _call_together(
    shapes: Iterator[Shape], client: Client, num_callers: int, note: Callable[[Outcome], None]
) -> None:
    """Let callers take one shape after the other until none is left."""

    async def call_on() -> None:
        for shape in shapes:
            request = client.prepare(shape)
            outcome = await client.send(request, due_s=time.perf_counter())
            note(outcome)
            if outcome.failure is not None:
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as callers:
        for _ in range(num_callers):
            callers.create_task(call_on())


async def _run_open(load: OpenLoop, client: Client, note: Callable[[Outcome], None]) -> None:
    """Send each request when it is due, even if earlier ones failed."""
    slots: AbstractAsyncContextManager[object]
    slots = asyncio.Semaphore(load.max_in_flight) if load.max_in_flight else nullcontext()

    async def call(request: PreparedRequest, due_s: float) -> None:
        async with slots:
            note(await client.send(request, due_s=due_s))

    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as calls:
        for arrival in load.arrivals:
            request = client.prepare(arrival.shape)
            due_s = begin_s + arrival.due_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            calls.create_task(call(request, due_s))
