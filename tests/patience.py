"""How long tests wait: until the thing happens, or can no longer happen.

The bound is for what hangs, not for what is slow: no test is judged by it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

HANG_S: Final = 600.0
"""Seconds after which what is waited for hangs."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.001)
