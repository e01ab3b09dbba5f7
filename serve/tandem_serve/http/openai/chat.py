"""POST /v1/chat/completions."""

from contextlib import ExitStack
from typing import Any, Final

from fastapi import Request, Response

from tandem_engine.api.engine_client import EngineClient, TextCodec
from tandem_engine.api.output import Output
from tandem_serve.http.admission.body_reader import read_body
from tandem_serve.http.admission.deadline import Deadline
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.call import (
    Call,
    check_stream,
    engine_request,
    generate_response,
    slot_request,
)
from tandem_serve.http.openai.generation import EngineRequest
from tandem_serve.http.openai.logprobs import chat_logprobs
from tandem_serve.http.openai.prompts import check_length, encode_messages, prompt_limit
from tandem_serve.http.openai.protocol import ChatRequest
from tandem_serve.http.openai.response import CollectedChoice
from tandem_serve.http.openai.sampling import sampling_params
from tandem_serve.http.state import state_of

ID_PREFIX: Final = "chatcmpl"


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    deadline = Deadline.of(request)
    with ExitStack() as held:
        call = await _call(request, held)
        return await generate_response(
            request, call, id_prefix=ID_PREFIX, held=held, deadline=deadline
        )


async def _call(request: Request, held: ExitStack) -> Call:
    http = state_of(request)
    async with read_body(request, ChatRequest, http.admission) as body:
        http.check_model(body.model)
        check_stream(body)
        num_logprobs = _num_logprobs(body)
        engine = http.engine()
        held.enter_context(http.admission.slots(slot_request(body, 1)))
        prompt = await _engine_request(body, engine, num_logprobs, http.settings.max_inline_length)
        return Call(
            engine=engine,
            engine_requests=[prompt],
            formatter=ChatFormatter(engine.codec, has_logprobs=num_logprobs is not None),
            choices_per_prompt=body.n or 1,
            is_stream=bool(body.stream),
            includes_usage=body.includes_usage,
        )


async def _engine_request(
    body: ChatRequest, engine: EngineClient, num_logprobs: int | None, max_inline_length: int
) -> EngineRequest:
    limits = engine.limits
    token_ids = await encode_messages(
        engine.codec,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        template_kwargs=body.chat_template_kwargs,
        max_inline_length=max_inline_length,
        limit=prompt_limit(limits),
    )
    check_length(len(token_ids), limits, "messages")
    room = limits.max_seq_len - len(token_ids)
    sampling = sampling_params(
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens or room,
        logprobs=num_logprobs,
        vocab_size=limits.vocab_size,
    )
    return engine_request(body, token_ids, sampling)


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.use_beam_search and body.top_logprobs:
        raise ApiError(
            f"top_logprobs is {body.top_logprobs}; it must be 0 or left out with use_beam_search.",
            param="top_logprobs",
            code="invalid_value",
        )
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(
            f"top_logprobs is {body.top_logprobs}, but logprobs is not true; set it to true.",
            param="top_logprobs",
            code="invalid_value",
        )
    return None


class ChatFormatter:
    """Choices as messages, whole or in deltas."""

    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, codec: TextCodec, *, has_logprobs: bool) -> None:
        self._codec = codec
        self._has_logprobs = has_logprobs
        self._begun: set[int] = set()

    def chunk_choice(self, index: int, output: Output) -> dict[str, Any]:
        """A choice of a chunk; the first of each choice says who speaks."""
        delta: dict[str, Any] = {}
        if index not in self._begun:
            self._begun.add(index)
            delta = {"role": "assistant", "content": output.text}
        elif output.text:
            delta = {"content": output.text}
        has_logprobs = self._has_logprobs and bool(output.logprobs)
        return {
            "index": index,
            "delta": delta,
            "logprobs": chat_logprobs(self._codec, output.logprobs) if has_logprobs else None,
            "finish_reason": output.finish_reason,
        }

    def full_choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        """A choice of a whole answer."""
        logprobs = chat_logprobs(self._codec, choice.logprobs) if self._has_logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
