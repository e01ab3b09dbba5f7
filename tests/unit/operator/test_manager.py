"""The end of a leader, over parts that do nothing."""

import asyncio
from typing import Any, cast

from tandem_operator.manager import EXIT_DONE, Manager

ALL = {"workers", "resync", "autoscaler", "replica pages", "watch", "renewal"}


class Running:
    """The names of what runs, and of what still ran when the lease was released."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.at_release: set[str] | None = None

    def part(self, name: str) -> Any:
        return _Part(self, name)


class _Part:
    def __init__(self, running: Running, name: str) -> None:
        self._running, self._name = running, name

    async def run(self) -> None:
        self._running.now.add(self._name)
        try:
            await asyncio.Event().wait()
        finally:
            # As a request to the API server that is given up.
            await asyncio.sleep(0)
            self._running.now.remove(self._name)

    async def drain(self, _: float) -> None:
        """There is no work."""

    renew = run

    async def release(self) -> None:
        self._running.at_release = set(self._running.now)


class _StopOnceAllRun:
    def __init__(self, running: Running) -> None:
        self._running = running

    async def wait(self) -> None:
        while self._running.now != ALL:
            await asyncio.sleep(0)


async def test_nothing_runs_any_more_when_the_lease_is_released() -> None:
    running = Running()
    manager = Manager(
        workers=running.part("workers"),
        watches=(running.part("watch"),),
        resync=running.part("resync"),
        autoscaler=running.part("autoscaler"),
        replica_pages=running.part("replica pages"),
    )

    code = await manager.run(running.part("renewal"), cast(Any, _StopOnceAllRun(running)))

    assert code == EXIT_DONE
    assert running.at_release == set()
