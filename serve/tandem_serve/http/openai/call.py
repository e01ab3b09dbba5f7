"""The path of every call that generates, from the body to the response.

Chat and completions differ in a `RequestAdapter` each.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from fastapi import Request, Response

from tandem_engine.api.engine_client import EngineClient, TextCodec
from tandem_engine.api.request import (
    LOWEST_PRIORITY,
    MAX_N,
    SamplingParams,
    check_cache_salt,
    check_priority,
)
from tandem_serve.http.admission.api_keys import cache_salt_of
from tandem_serve.http.admission.body_reader import read_body
from tandem_serve.http.admission.deadline import Deadline
from tandem_serve.http.admission.slots import SlotRequest
from tandem_serve.http.disconnect import until_disconnect
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.generation import EngineRequests, Generation
from tandem_serve.http.openai.protocol import GenerationRequest
from tandem_serve.http.openai.response import ChoiceFormatter, GenerationResponse
from tandem_serve.http.openai.streaming import EventStream
from tandem_serve.http.state import state_of
from tandem_serve.http.tracing import RequestTrace

T = TypeVar("T", bound=GenerationRequest)

NUM_ID_DIGITS: Final = 8
"""Enough to tell apart the calls of one caller that repeats its x-request-id."""


class RequestAdapter(Protocol):
    """One checked body of an endpoint, as the engine and the answer need it."""

    @property
    def num_prompts(self) -> int:
        """Prompts of the call."""

    async def encode(self, engine: EngineClient, max_inline_length: int) -> list[list[int]]:
        """Return the token ids of each prompt.

        Raises:
            ApiError: a prompt is invalid, empty or too long.
            InvalidParameter: the chat template refuses the messages.
        """

    def sampling(self, prompts: Sequence[list[int]], engine: EngineClient) -> SamplingParams:
        """Return the parameters of all prompts.

        Raises:
            ApiError: a token id or a bias is out of its range.
            InvalidParameter: another value is out of its range.
        """

    async def formatter(self, codec: TextCodec, max_inline_length: int) -> ChoiceFormatter:
        """Return the formatter of the choices; it keeps nothing of the body but what it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call as the engine needs it.

    Its body is not part of it: the body's memory is free while the answer is computed.
    """

    engine: EngineClient
    engine_requests: EngineRequests
    formatter: ChoiceFormatter
    choices_per_prompt: int
    is_stream: bool
    includes_usage: bool
    has_continuous_usage: bool


async def generate(
    request: Request,
    model: type[T],
    adapt: Callable[[T], RequestAdapter],
    *,
    id_prefix: str,
    operation: str,
) -> Response:
    """Read a body of `model`, submit its prompts, and return a stream or a whole answer.

    Args:
        request: The call.
        model: The type of its body.
        adapt: Makes the adapter of a body.
        id_prefix: Beginning of the answer's id.
        operation: The word of OpenTelemetry's conventions for it, in its trace.

    Raises:
        ApiError: the body, a header or the state of the server refuses the call.
        EngineError: the engine refuses the call, or fails while it computes.
        ClientDisconnected: the caller disconnected.
    """
    with ExitStack() as held:
        tracing = state_of(request).tracing
        trace = tracing.begin(operation, request.headers, request.state.request_id)
        if trace is not None:
            held.push(trace.end)
        deadline = Deadline.of(request)
        call = await _call(request, model, adapt, held)
        return await _respond(
            request, call, id_prefix=id_prefix, held=held, deadline=deadline, trace=trace
        )


async def _call(
    request: Request, model: type[T], adapt: Callable[[T], RequestAdapter], held: ExitStack
) -> _Call:
    """Read and check the body; `held` keeps its slots."""
    http = state_of(request)
    max_inline_length = http.settings.max_inline_length
    async with read_body(request, model, http.admission) as body:
        http.check_model(body.model)
        _check_stream(body)
        adapter = adapt(body)
        engine = http.engine()
        held.enter_context(http.admission.slots(_slot_request(body, adapter.num_prompts)))
        prompts = await adapter.encode(engine, max_inline_length)
        sampling = adapter.sampling(prompts, engine)
        return _Call(
            engine=engine,
            engine_requests=_engine_requests(request, body, prompts, sampling),
            formatter=await adapter.formatter(engine.codec, max_inline_length),
            choices_per_prompt=body.n or 1,
            is_stream=bool(body.stream),
            includes_usage=body.includes_usage,
            has_continuous_usage=body.has_continuous_usage,
        )


def _check_stream(body: GenerationRequest) -> None:
    """Refuse streams whose tokens are known only at the end, and stream_options without stream."""
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


def _slot_request(body: GenerationRequest, num_prompts: int) -> SlotRequest:
    """Return the slots of a call: one for each sequence that the engine computes for it."""
    param, given = ("n", body.n) if body.best_of is None else ("best_of", body.best_of)
    num_each = 1 if given is None else given
    # A number out of range takes one slot: the engine refuses it, with its range.
    is_possible = 1 <= num_each <= MAX_N
    return SlotRequest(
        num_prompts=num_prompts, param=param, num_each=num_each if is_possible else 1
    )


def _engine_requests(
    request: Request,
    body: GenerationRequest,
    prompts: Sequence[list[int]],
    sampling: SamplingParams,
) -> EngineRequests:
    priority = LOWEST_PRIORITY if body.priority is None else body.priority
    given_salt = body.cache_salt or ""
    check_priority(priority)
    check_cache_salt(given_salt)
    salt = cache_salt_of(request, given_salt)
    return EngineRequests(prompts=prompts, sampling=sampling, priority=priority, cache_salt=salt)


async def _respond(
    request: Request,
    call: _Call,
    *,
    id_prefix: str,
    held: ExitStack,
    deadline: Deadline,
    trace: RequestTrace | None,
) -> Response:
    http = state_of(request)
    call_id = http.dependencies.new_id()
    engine_id = f"{request.state.request_id}-{call_id[-NUM_ID_DIGITS:]}"
    generation = Generation(call.engine, engine_id, deadline, trace=trace)
    await _submit(request, generation, call.engine_requests, held)
    answer = GenerationResponse(
        generation=generation,
        formatter=call.formatter,
        choices_per_prompt=call.choices_per_prompt,
        answer_id=f"{id_prefix}-{call_id}",
        created_s=int(http.dependencies.unix_time_s()),
        model=http.settings.model_name,
    )
    if call.is_stream:
        return EventStream(
            answer.events(
                includes_usage=call.includes_usage, has_continuous_usage=call.has_continuous_usage
            ),
            held.pop_all(),
            head_after_s=http.settings.head_after_s,
            comment_after_s=http.settings.comment_after_s,
        )
    return await until_disconnect(request.receive, answer.whole())


async def _submit(
    request: Request, generation: Generation, engine_requests: EngineRequests, held: ExitStack
) -> None:
    """Submit all prompts of a call, unless its caller disconnects meanwhile."""
    submitting = generation.submit(engine_requests, held)
    if len(engine_requests.prompts) == 1:  # Nearly always; it is done at once.
        await submitting
    else:
        await until_disconnect(request.receive, submitting)
