"""Recordings of steps for timelines, one at a time, while the service goes on."""

import asyncio
from contextlib import suppress

from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.timeline import Timeline
from tandem_engine.runner.executor import RecordingExecutor


class Recordings:
    """Has an executor record steps; used on one event loop.

    Args:
        executor: Computes the steps, on other threads.
    """

    def __init__(self, executor: RecordingExecutor) -> None:
        self._executor = executor
        self._one_at_a_time = asyncio.Lock()
        self._is_stopped = asyncio.Event()

    async def record(self, num_steps: int, within_s: float) -> Timeline:
        """Record the next steps; see `EngineClient.timeline`."""
        async with self._one_at_a_time:
            if self._is_stopped.is_set():
                return Timeline(steps=())
            try:
                return await self._record(num_steps, within_s)
            except ReplicaLost:
                # Requests are told why.
                return Timeline(steps=())

    async def stop(self) -> None:
        """End the recording that runs, and begin no other."""
        self._is_stopped.set()
        async with self._one_at_a_time:
            pass

    async def _record(self, num_steps: int, within_s: float) -> Timeline:
        is_over, loop = asyncio.Event(), asyncio.get_running_loop()

        def is_full() -> None:
            # The loop may be closed while a last step is computed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(is_over.set)

        # A step that is begun holds both up.
        await asyncio.to_thread(self._executor.begin_recording, num_steps, is_full)
        try:
            await self._over(is_over, within_s)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._executor.end_recording)
            raise
        return await asyncio.to_thread(self._executor.end_recording)

    async def _over(self, is_over: asyncio.Event, within_s: float) -> None:
        """Wait until all steps are recorded, time is up, or the engine stops."""
        waits = [asyncio.create_task(event.wait()) for event in (is_over, self._is_stopped)]
        try:
            await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
