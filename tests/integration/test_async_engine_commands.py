"""Commands to the engine that fail: their caller learns of it, and the other streams go on."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tandem_engine.api.errors import EngineStopped, RequestFailed
from tandem_engine.api.request import Request
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Step, StepResult
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.scheduler.queues import Queues
from tests.integration.meeting import meeting
from tests.integration.test_async_engine import (
    MIX,
    PROMPT,
    all_free,
    checkpoint,
    counter,
    engine_of,
    params,
    read,
    tokens,
)
from tests.patience import HANG_S, until

__all__ = ["checkpoint"]

LONG = params(max_tokens=200)


def breaks(owner: Any, name: str, is_odd: Callable[..., bool], patch: pytest.MonkeyPatch) -> None:
    """Let a method raise, once, when its arguments are odd."""
    method, odd = getattr(owner, name), [True]

    def broken(*given: Any, **named: Any) -> Any:
        if odd and is_odd(*given):
            odd.clear()
            raise KeyError("there is no such row")
        return method(*given, **named)

    patch.setattr(owner, name, broken)


def is_odd(given: Any) -> bool:
    return (given.request_id if isinstance(given, Request) else given).startswith("odd")


async def beside(engine: AsyncEngine) -> tuple[list[int], "asyncio.Task[list[int]]"]:
    """The answer of a request alone, and the same one again, begun and still running."""
    alone = tokens(await read(engine, LONG))
    stream = engine.submit("near", PROMPT, LONG)
    first = await anext(aiter(stream))

    async def rest() -> list[int]:
        return tokens([first, *[output async for output in stream]])

    return alone, asyncio.create_task(rest())


@pytest.mark.parametrize("part", ["_runner", "_scheduler"])
async def test_a_request_that_cannot_be_added_fails_alone(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    async with engine_of(checkpoint) as engine:
        alone, near = await beside(engine)
        breaks(getattr(engine._loop._engine, part), "add", is_odd, monkeypatch)
        with pytest.raises(RequestFailed, match="KeyError: 'there is no such row'"):
            await read(engine, params(n=3), "odd")

        assert await near == alone
        assert len(tokens(await read(engine, params(), "odd"))) == 16
        assert counter(engine, "request_failed") == 3
        await until(lambda: all_free(engine))


async def test_an_abort_that_fails_harms_no_other(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine_of(checkpoint) as engine:
        alone, near = await beside(engine)
        breaks(engine._loop._engine, "abort", is_odd, monkeypatch)
        stream = engine.submit("odd", PROMPT, params(max_tokens=400, n=3))
        await anext(aiter(stream))
        stream.abort()

        assert await near == alone
        # One choice was not given up: it runs to its end, without a reader.
        await until(lambda: all_free(engine))
        engine.check_health()


async def test_a_live_change_that_fails_raises_and_leaves_the_settings_before(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine_of(checkpoint) as engine:
        alone, near = await beside(engine)
        scheduler: Any = engine._loop._engine._scheduler
        before = scheduler._policies.schedule
        breaks(scheduler._queues.waiting, "reorder", lambda *_: True, monkeypatch)
        changed = MIX.model_copy(update={"max_batch_size": 3})
        with pytest.raises(KeyError, match="there is no such row"):
            await engine.reconfigure(changed, Slo())

        assert scheduler._policies.schedule is before
        assert await near == alone
        await engine.reconfigure(changed, Slo())
        assert scheduler._policies.schedule.max_batch_size == 3


async def test_a_command_that_leaves_chaos_ends_the_engine_for_all_to_see(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine_of(checkpoint) as engine:
        runner, forget = engine._loop._engine._runner, Queues.forget
        run, is_aborted = runner.run, threading.Event()

        def hold(step: Step) -> StepResult:
            """Hold both requests back when they have begun: none may end by itself."""
            if len(step.sequence_ids[: step.num_decodes]) == 2:
                is_aborted.wait(HANG_S)
            return run(step)

        def half(queues: Queues, sequence_id: str) -> None:
            forget(queues, sequence_id)
            if is_odd(sequence_id):
                raise KeyError(sequence_id)

        monkeypatch.setattr(Queues, "forget", half)
        monkeypatch.setattr(runner, "run", hold)
        with meeting(engine, 2):
            near, odd = (engine.submit(name, PROMPT, LONG) for name in ("near", "odd"))
        await anext(aiter(odd))
        odd.abort()
        is_aborted.set()

        with pytest.raises(EngineStopped, match="this is a bug"):
            _ = [output async for output in near]
        with pytest.raises(EngineStopped, match="The engine died: AssertionError"):
            engine.check_health()


async def test_a_caller_that_comes_as_the_engine_stops_gets_an_error(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        loop = engine._loop
        loop.stop()
        streams, changes = [], []
        with suppress(EngineStopped):
            while True:
                streams.append(engine.submit("late", PROMPT, LONG))
                changes.append(asyncio.wrap_future(loop.reconfigure(MIX, Slo())))
        for stream in streams:
            with pytest.raises(EngineStopped):
                await anext(aiter(stream))
        results = await asyncio.gather(*changes, return_exceptions=True)
        assert all(isinstance(each, EngineStopped) for each in results)
        with pytest.raises(EngineStopped):
            await engine.reconfigure(MIX, Slo())
