"""SIGTERM and SIGINT as an event to wait for."""

import asyncio
import signal


class StopSignals:
    """Waits for the wish that the process end."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def install(self) -> None:
        """Take the signals; again after kopf has taken them for itself."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked.set)

    async def wait(self) -> None:
        """Until one of them comes."""
        await self._asked.wait()
