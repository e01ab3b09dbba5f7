"""Runs long work in threads and short work at once, so that no stream is delayed."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OffloadPool:
    """A few threads for one kind of long work.

    Few, since each one that computes in Python makes the event loop wait another 5 ms for the
    global lock; and not those of `asyncio.to_thread`, which short work needs.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    async def run(
        self,
        is_long: bool,
        function: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function`, in a thread if it takes long: a thread costs more than a short call."""
        if not is_long:
            return function(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))


PARSER_POOL: Final = OffloadPool("tandem-parse", 1)
"""Bodies: one at a time, since a parser does not release the lock in between."""
TEXT_POOL: Final = OffloadPool("tandem-text", 2)
"""Chat templates and tokenizers; the latter release the lock."""
