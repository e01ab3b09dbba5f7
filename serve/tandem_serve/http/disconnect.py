"""Detects at once that the caller disconnected, and cancels the work for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from tandem_serve.http.errors import ClientDisconnected

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`; cancel it as soon as the caller disconnects.

    Starlette looks for a disconnect only while it streams, and under ASGI 2.4 only at the next
    send; a prompt in a long queue would be computed for a caller that has left.

    Raises:
        ClientDisconnected: the caller disconnected first. `work` has ended by then.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
