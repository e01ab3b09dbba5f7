"""GET /debug/steps: the content of the engine's last steps, and why other sequences waited."""

import asyncio
from typing import Annotated, Final

from fastapi import Request, Response
from pydantic import Field, TypeAdapter

from tandem_engine.api.engine_client import EngineClient
from tandem_engine.api.steps import MAX_KEPT_STEPS
from tandem_serve.api.steps import StepsReport
from tandem_serve.http.openai.protocol import RequestModel
from tandem_serve.http.query import read_query
from tandem_serve.http.state import HttpState, state_of

_REPORT: Final = TypeAdapter(StepsReport)


class StepsQuery(RequestModel):
    """Selection of steps."""

    since: Annotated[int, Field(ge=0)] = 0
    """The first number that is of interest."""
    limit: Annotated[int, Field(ge=1, le=MAX_KEPT_STEPS)] = 20
    """Steps at most; the newest ones are given."""
    decodes: bool = True
    """True: decode rows are listed; False: they are only counted."""


async def steps(request: Request) -> Response:
    """Explain the newest steps, oldest first; numbers that are yet to come give an empty list."""
    http = state_of(request)
    query = read_query(request, StepsQuery)
    engine = http.engine()
    # There may be some hundred steps of some hundred rows each.
    body = await asyncio.to_thread(_body, http, engine, query)
    return Response(body, media_type="application/json")


def _body(http: HttpState, engine: EngineClient, query: StepsQuery) -> bytes:
    newest = engine.steps(limit=1, with_decodes=False)
    report = StepsReport(
        model=http.settings.model_name,
        time=http.dependencies.unix_time_s(),
        newest=newest[-1].number if newest else None,
        limits=engine.limits,
        stats=engine.stats(),
        steps=tuple(engine.steps(query.since, query.limit, with_decodes=query.decodes)),
    )
    return _REPORT.dump_json(report)
