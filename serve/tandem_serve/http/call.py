"""What chat and completions do alike, from the checked body to the response."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from fastapi import Request, Response

from tandem_engine.api.front import EngineFront
from tandem_serve.http.answer import Answer, Form
from tandem_serve.http.disconnect import until_disconnect
from tandem_serve.http.errors import ApiError
from tandem_serve.http.generation import EngineRequest, Generation
from tandem_serve.http.openai_types import GenerationRequest
from tandem_serve.http.state import state_of
from tandem_serve.http.streaming import EventStream

NUM_ID_DIGITS: Final = 8
"""Enough to tell apart the calls of one caller that repeats its x-request-id."""


def check_stream_options(asked: GenerationRequest) -> None:
    """Refuse options of a stream where none was asked for.

    Raises:
        ApiError: stream_options without stream.
    """
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(
            "stream_options needs stream true; set it or leave it out.",
            param="stream_options",
            code="invalid_value",
        )


async def answer_call(
    request: Request,
    *,
    asked: GenerationRequest,
    engine: EngineFront,
    engine_requests: Sequence[EngineRequest],
    form: Form,
    id_prefix: str,
    held: ExitStack,
) -> Response:
    """Submit, and answer with a stream or with a whole.

    A stream takes over what `held` holds; otherwise the caller closes it.
    """
    http = state_of(request)
    call_id = http.outside.new_id()
    engine_id = f"{request.state.request_id}-{call_id[-NUM_ID_DIGITS:]}"
    answer = Answer(
        generation=Generation(engine, engine_requests, engine_id, held),
        form=form,
        choices_per_prompt=asked.n or 1,
        answer_id=f"{id_prefix}-{call_id}",
        created_s=int(http.outside.unix_time_s()),
        model=http.settings.model_name,
    )
    if asked.stream:
        return EventStream(answer.events(includes_usage=asked.includes_usage), held.pop_all())
    return await until_disconnect(request.receive, answer.whole())
