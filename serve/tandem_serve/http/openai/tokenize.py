"""POST /tokenize and POST /detokenize, in vLLM's shapes."""

from typing import Any, Final

from fastapi import Request, Response
from pydantic_core import to_json

from tandem_engine.api.engine_client import EngineClient, EngineLimits
from tandem_serve.http.admission.body_reader import read_body
from tandem_serve.http.admission.slots import SlotRequest
from tandem_serve.http.errors import ApiError
from tandem_serve.http.offload import TEXT_POOL
from tandem_serve.http.openai.prompts import PromptLimit, encode_messages, encode_texts
from tandem_serve.http.openai.protocol import DetokenizeRequest, TokenizeRequest
from tandem_serve.http.openai.sampling import check_token_ids
from tandem_serve.http.state import HttpState, state_of

TEXT_LINKS: Final = 16
"""The maxLinkNum of these two endpoints: three times as many calls may be in flight."""
CONTEXTS: Final = 4
"""A text to tokenize may be this many times as long as the longest context, so that its excess can
be counted."""


async def tokenize(request: Request) -> Response:
    """Turn a prompt or messages into token ids."""
    http = state_of(request)
    async with read_body(request, TokenizeRequest, http.text_admission) as body:
        http.check_model(body.model)
        with http.text_admission.slots(SlotRequest()):
            return await _tokenize(body, http, http.engine())


async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    http = state_of(request)
    async with read_body(request, DetokenizeRequest, http.text_admission) as body:
        http.check_model(body.model)
        with http.text_admission.slots(SlotRequest()):
            return await _detokenize(body, http, http.engine())


async def _tokenize(body: TokenizeRequest, http: HttpState, engine: EngineClient) -> Response:
    token_ids = await _token_ids(body, engine, http.settings.max_inline_length)
    limit = _text_limit(engine.limits)
    if len(token_ids) > limit.num_tokens:
        param = "prompt" if body.messages is None else "messages"
        raise limit.exceeded(f"{len(token_ids)} tokens", param)
    document: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": engine.limits.max_seq_len,
        "tokens": token_ids,
        "token_strs": None,
    }
    if body.return_token_strs:
        document["token_strs"] = await TEXT_POOL.run(
            len(token_ids) > http.settings.max_inline_length,
            lambda: [engine.codec.token_text(token_id) for token_id in token_ids],
        )
    return Response(to_json(document), media_type="application/json")


async def _detokenize(body: DetokenizeRequest, http: HttpState, engine: EngineClient) -> Response:
    most = engine.limits.max_seq_len  # More would take the global lock for too long.
    if len(body.tokens) > most:
        raise ApiError(
            f"tokens has {len(body.tokens)} token ids; it must have at most {most}, the longest "
            "context of this server.",
            param="tokens",
            code="invalid_value",
        )
    check_token_ids(body.tokens, engine.limits.vocab_size, "tokens")
    text = await TEXT_POOL.run(
        len(body.tokens) > http.settings.max_inline_length,
        engine.codec.decode,
        body.tokens,
        skip_special_tokens=False,
    )
    return Response(to_json({"prompt": text}), media_type="application/json")


def _text_limit(limits: EngineLimits) -> PromptLimit:
    """The longest text to tokenize."""
    longest = CONTEXTS * limits.max_seq_len
    return PromptLimit(longest, limits.max_seq_len, f"and /tokenize takes at most {longest}")


async def _token_ids(
    body: TokenizeRequest, engine: EngineClient, max_inline_length: int
) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(
            "Send either prompt or messages, and not both.", param="prompt", code="invalid_value"
        )
    limit = _text_limit(engine.limits)
    if body.messages is not None:
        _refuse_special_tokens(body)
        return await encode_messages(
            engine.codec,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=body.chat_template_kwargs,
            max_inline_length=max_inline_length,
            limit=limit,
        )
    [token_ids] = await encode_texts(
        engine.codec,
        [body.prompt or ""],
        add_special_tokens=body.add_special_tokens is not False,
        max_inline_length=max_inline_length,
        limit=limit,
    )
    return token_ids


def _refuse_special_tokens(body: TokenizeRequest) -> None:
    if body.add_special_tokens:
        raise ApiError(
            "add_special_tokens goes with prompt; in messages the chat template puts the special "
            "tokens. Leave it out.",
            param="add_special_tokens",
            code="invalid_value",
        )
