"""Requests that meet in an engine, however slow the caller that sends them is."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tandem_engine.api.request import Request
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.async_engine.choice import Choice
from tests.patience import HANG_S


@contextmanager
def meeting(engine: AsyncEngine, count: int) -> Iterator[None]:
    """Let no step begin before `count` requests are queued.

    Else the first may have ended, and given its blocks back, before the last one comes.
    """
    loop, all_queued = engine._loop, threading.Event()
    begin, step, queued = loop.begin, loop._step, list[Request]()

    def count_in(request: Request, choices: Sequence[Choice]) -> None:
        begin(request, choices)
        queued.append(request)
        if len(queued) == count:
            all_queued.set()

    def wait() -> None:
        all_queued.wait(HANG_S)
        step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "begin", count_in)
        patch.setattr(loop, "_step", wait)
        try:
            yield
        finally:
            all_queued.set()
