"""Traces of requests: the tracer in force, and what a call tells of itself.

OpenTelemetry is imported when a service asks for traces, and not before.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Protocol

from starlette.datastructures import Headers

from tandem_engine.api.engine_client import RequestTimeline
from tandem_serve.api.observability import TracingSettings

_LOGGER: Final = logging.getLogger(__name__)


class RequestTrace(Protocol):
    """The trace of one call; it is sent when the call ends."""

    def add(self, num_prompt_tokens: int, timelines: Sequence[RequestTimeline]) -> None:
        """Add a prompt and the timelines of its choices, which are read at the end."""

    def succeed(self) -> None:
        """Note that every output was given out."""

    def fail(self, error: BaseException) -> None:
        """Note the error that the call ends with; the first one counts."""

    def end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Make the spans, and queue them to be sent; called as `__exit__`, and raises nothing."""


class Tracer(Protocol):
    """Begins traces and sends them."""

    def begin(self, operation: str, headers: Headers, request_id: str) -> RequestTrace | None:
        """Return the trace of a call that begins now; None: it is not sampled."""

    def close(self) -> None:
        """Send what is queued, for some seconds; blocks."""


class Tracing:
    """The tracer of a replica, which a live change replaces; without one calls cost nothing."""

    def __init__(self, make: "Callable[[TracingSettings], Tracer] | None" = None) -> None:
        self._make = make or _otel_tracer
        self._settings: TracingSettings | None = None
        self._tracer: Tracer | None = None

    def begin(self, operation: str, headers: Headers, request_id: str) -> RequestTrace | None:
        """Return the trace of a call that begins now; None: it is not traced."""
        if self._tracer is None:
            return None
        try:
            return self._tracer.begin(operation, headers, request_id)
        except Exception:
            _LOGGER.exception("A request is not traced; this is a bug.")
            return None

    async def apply(self, settings: TracingSettings | None) -> None:
        """Trace by `settings` from now on; traces that cannot be set up are logged and left out."""
        if settings == self._settings:
            return
        old = self._tracer
        self._settings, self._tracer = settings, None
        if settings is not None:
            try:
                # In threads: importing takes a second, closing waits for the receiver.
                self._tracer = await asyncio.to_thread(self._make, settings)
            except Exception:
                _LOGGER.exception("Requests are not traced: tracing cannot be set up.")
        if old is not None:
            await asyncio.to_thread(old.close)

    async def close(self) -> None:
        """Send what is queued, and trace nothing more."""
        await self.apply(None)


def _otel_tracer(settings: TracingSettings) -> Tracer:
    # It takes a second, and most services do without.
    from tandem_serve.http.otel import OtelTracer  # noqa: PLC0415

    return OtelTracer.sending(settings)
