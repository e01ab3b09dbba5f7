"""Steps that chat and completions share, from the checked body to the response."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from fastapi import Request, Response

from tandem_engine.api.engine_client import EngineClient
from tandem_engine.api.request import (
    LOWEST_PRIORITY,
    MAX_N,
    SamplingParams,
    check_cache_salt,
    check_priority,
)
from tandem_serve.http.admission.deadline import Deadline
from tandem_serve.http.admission.slots import SlotRequest
from tandem_serve.http.disconnect import until_disconnect
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.generation import EngineRequest, Generation
from tandem_serve.http.openai.protocol import GenerationRequest
from tandem_serve.http.openai.response import ChoiceFormatter, GenerationResponse
from tandem_serve.http.openai.streaming import EventStream
from tandem_serve.http.state import state_of

NUM_ID_DIGITS: Final = 8
"""Enough to tell apart the calls of one caller that repeats its x-request-id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call as the engine needs it.

    Its body is not part of it: the body's memory is free while the answer is computed.
    """

    engine: EngineClient
    engine_requests: Sequence[EngineRequest]
    formatter: ChoiceFormatter
    choices_per_prompt: int
    is_stream: bool
    includes_usage: bool


def slot_request(body: GenerationRequest, num_prompts: int) -> SlotRequest:
    """The slots that a call needs: one for each sequence that the engine computes for it."""
    param, given = ("n", body.n) if body.best_of is None else ("best_of", body.best_of)
    num_each = 1 if given is None else given
    # A number out of range takes one slot: the engine refuses it, with its range.
    is_possible = 1 <= num_each <= MAX_N
    return SlotRequest(
        num_prompts=num_prompts, param=param, num_each=num_each if is_possible else 1
    )


def check_stream(body: GenerationRequest) -> None:
    """Refuse streams whose tokens are known only at the end, and stream_options without stream.

    Raises:
        ApiError: best_of above n or use_beam_search with stream, or stream_options without it.
    """
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            "stream_options needs stream true; set it or leave it out.",
            param="stream_options",
            code="invalid_value",
        )
    if body.stream and body.use_beam_search:
        raise ApiError(
            "use_beam_search is true, which needs all beams to end before the first token can be "
            "returned; leave out stream or use_beam_search.",
            param="use_beam_search",
            code="invalid_value",
        )
    if body.stream and body.best_of is not None and body.best_of > (body.n or 1):
        raise ApiError(
            f"best_of is {body.best_of}, more than n ({body.n or 1}), which needs all choices "
            "before the first can be returned; leave out stream or best_of.",
            param="best_of",
            code="invalid_value",
        )


def engine_request(
    body: GenerationRequest, token_ids: Sequence[int], sampling: SamplingParams
) -> EngineRequest:
    """One prompt of a call for the engine.

    Raises:
        InvalidParameter: priority or cache_salt is out of its range.
    """
    priority = LOWEST_PRIORITY if body.priority is None else body.priority
    salt = body.cache_salt or ""
    check_priority(priority)
    check_cache_salt(salt)
    return EngineRequest(
        prompt_token_ids=token_ids, sampling=sampling, priority=priority, cache_salt=salt
    )


async def generate_response(
    request: Request,
    call: Call,
    *,
    id_prefix: str,
    held: ExitStack,
    deadline: Deadline,
) -> Response:
    """Submit, and respond with a stream or a whole answer.

    A stream takes over the contents of `held`; otherwise the caller closes it.
    """
    http = state_of(request)
    call_id = http.dependencies.new_id()
    engine_id = f"{request.state.request_id}-{call_id[-NUM_ID_DIGITS:]}"
    answer = GenerationResponse(
        generation=Generation(call.engine, call.engine_requests, engine_id, held, deadline),
        formatter=call.formatter,
        choices_per_prompt=call.choices_per_prompt,
        answer_id=f"{id_prefix}-{call_id}",
        created_s=int(http.dependencies.unix_time_s()),
        model=http.settings.model_name,
    )
    if call.is_stream:
        return EventStream(answer.events(includes_usage=call.includes_usage), held.pop_all())
    return await until_disconnect(request.receive, answer.whole())
