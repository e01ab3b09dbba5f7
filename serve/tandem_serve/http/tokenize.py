"""POST /tokenize and POST /detokenize, in vLLM's shapes."""

from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from tandem_engine.api.front import TextCodec
from tandem_serve.http.body import read_request
from tandem_serve.http.errors import ApiError
from tandem_serve.http.off_loop import run_off_loop
from tandem_serve.http.openai_types import DetokenizeRequest, TokenizeRequest
from tandem_serve.http.prompts import encode_messages, encode_texts
from tandem_serve.http.sampling import check_token_ids
from tandem_serve.http.state import state_of


async def tokenize(request: Request) -> Response:
    """Turn a prompt or messages into token ids."""
    http = state_of(request)
    asked = await read_request(request, TokenizeRequest)
    http.check_model(asked.model)
    engine = http.engine()
    token_ids = await _token_ids(asked, engine.codec, http.settings.max_inline_length)
    document: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": engine.limits.max_seq_len,
        "tokens": token_ids,
        "token_strs": None,
    }
    if asked.return_token_strs:
        document["token_strs"] = await run_off_loop(
            len(token_ids) > http.settings.max_inline_length,
            lambda: [engine.codec.token_text(token_id) for token_id in token_ids],
        )
    return Response(to_json(document), media_type="application/json")


async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    http = state_of(request)
    asked = await read_request(request, DetokenizeRequest)
    http.check_model(asked.model)
    engine = http.engine()
    check_token_ids(asked.tokens, engine.limits.vocab_size, "tokens")
    text = await run_off_loop(
        len(asked.tokens) > http.settings.max_inline_length,
        engine.codec.decode,
        asked.tokens,
        skip_special_tokens=False,
    )
    return Response(to_json({"prompt": text}), media_type="application/json")


async def _token_ids(asked: TokenizeRequest, codec: TextCodec, max_inline_length: int) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError(
            "Send either prompt or messages, and not both.", param="prompt", code="invalid_value"
        )
    if asked.messages is not None:
        _refuse_special_tokens(asked)
        return await encode_messages(
            codec,
            asked.messages,
            add_generation_prompt=asked.add_generation_prompt,
            template_kwargs=asked.chat_template_kwargs,
            max_inline_length=max_inline_length,
        )
    [token_ids] = await encode_texts(
        codec,
        [asked.prompt or ""],
        add_special_tokens=asked.add_special_tokens is not False,
        max_inline_length=max_inline_length,
    )
    return token_ids


def _refuse_special_tokens(asked: TokenizeRequest) -> None:
    if asked.add_special_tokens:
        raise ApiError(
            "add_special_tokens goes with prompt; in messages the chat template puts the special "
            "tokens. Leave it out.",
            param="add_special_tokens",
            code="invalid_value",
        )
