"""GET /debug/steps: the content of the engine's last steps, and why other sequences waited."""

import asyncio
from collections import Counter
from typing import Annotated, Any, Final

from fastapi import Request, Response
from pydantic import Field, TypeAdapter

from tandem_engine.api.engine_client import EngineClient
from tandem_engine.api.model import unknown_field_text
from tandem_engine.api.steps import MAX_KEPT_STEPS
from tandem_serve.api.steps import StepsReport
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.protocol import RequestModel
from tandem_serve.http.openai.validation import as_sentence, validate
from tandem_serve.http.state import HttpState, state_of

_MAX_DIGITS: Final = 18
_REPORT: Final = TypeAdapter(StepsReport)
_BOOLS: Final = {"true": True, "false": False}


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
    query = _query(request)
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


def _query(request: Request) -> StepsQuery:
    """The checked query.

    Raises:
        ApiError: a name is unknown or comes twice, or a value is not what it should be (400).
    """
    given = request.query_params.multi_items()
    known = sorted(StepsQuery.model_fields)
    for name, count in Counter(name for name, _ in given).items():
        if name not in known:
            raise ApiError(
                as_sentence(f"The query has an {unknown_field_text(name, known)}"),
                param=name,
                code="unknown_parameter",
            )
        if count > 1:
            raise ApiError(
                f"{name} is given {count} times in the query; give it once.",
                param=name,
                code="invalid_value",
            )
    return validate(StepsQuery, {name: _value(text) for name, text in given})


def _value(text: str) -> Any:
    """The integer or the truth that a query spells; else the text, to be refused by name."""
    if text in _BOOLS:
        return _BOOLS[text]
    is_integer = text.isascii() and text.removeprefix("-").isdecimal()
    return int(text) if is_integer and len(text) <= _MAX_DIGITS else text
