"""SIGTERM and SIGINT as an event to wait for."""

import asyncio
import signal


class StopSignals:
    """Waits for SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._received = asyncio.Event()

    def install(self) -> None:
        """Handle the signals; called again after kopf has replaced the handlers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received.set)

    async def wait(self) -> None:
        """Wait until one of them comes."""
        await self._received.wait()
