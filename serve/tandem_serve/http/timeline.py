"""POST /debug/timeline: what the streams of all ranks do in the next steps, as a trace."""

import asyncio
from typing import Annotated, Final

from fastapi import Request, Response
from pydantic import Field
from pydantic_core import to_json

from tandem_engine.api.timeline import MAX_TIMELINE_STEPS, Timeline
from tandem_serve.api.timeline_summary import summary_of
from tandem_serve.api.trace_events import trace_events, trace_head
from tandem_serve.http.disconnect import until_disconnect
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.protocol import RequestModel
from tandem_serve.http.query import read_query
from tandem_serve.http.state import state_of

_LEAST_WITHIN_S: Final = 0.1
_MOST_WITHIN_S: Final = 60.0


class TimelineQuery(RequestModel):
    """Extent of a recording."""

    steps: Annotated[int, Field(ge=1, le=MAX_TIMELINE_STEPS)] = 20
    """Steps to record."""
    withinSeconds: Annotated[float, Field(ge=_LEAST_WITHIN_S, le=_MOST_WITHIN_S)] = 10.0  # noqa: N815
    """Seconds after which the recording ends with the steps that there were."""


async def timeline(request: Request) -> Response:
    """Record the next steps of the engine; none within the time give a trace without slices."""
    http = state_of(request)
    _refuse_body(request)
    query = read_query(request, TimelineQuery)
    engine = http.engine()
    with http.recording.held(query.withinSeconds):
        # A caller that leaves ends the recording.
        recorded = await until_disconnect(
            request.receive, engine.timeline(query.steps, within_s=query.withinSeconds)
        )
        body = await asyncio.to_thread(_body, recorded, http.settings.model_name)
    return Response(body, media_type="application/json")


def _refuse_body(request: Request) -> None:
    """Refuse settings in the body, where they would have no effect.

    Raises:
        ApiError: there is a body (400).
    """
    headers = request.headers
    if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
        raise ApiError(
            "The request has a body, and /debug/timeline reads steps and withinSeconds from the "
            "query; send it without a body.",
            code="invalid_value",
        )


def _body(recorded: Timeline, model: str) -> bytes:
    """The trace as JSON, made in parts: the global lock is held for a step at a time."""
    parts = (to_json(events)[1:-1] for events in trace_events(recorded))
    events = b",\n".join(part for part in parts if part)
    head = to_json(trace_head(summary_of(recorded, model)))
    return b'{"traceEvents":[%b],\n%b' % (events, head[1:])
