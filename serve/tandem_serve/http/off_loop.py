"""Long work in a thread, short work at once: neither holds up the streams of other callers."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_off_loop(
    is_long: bool,
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call `function`, in a thread if the work is long; a thread costs more than a short call."""
    if is_long:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
