"""The end of asyncio tasks."""

import asyncio
from collections.abc import Collection
from typing import Any


async def cancel(tasks: Collection[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
    """Cancel `tasks` and wait for their end, at most `timeout_s`; their errors are dropped."""
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks, timeout=timeout_s)
    for task in done:
        if not task.cancelled():
            task.exception()
