"""POST /tokenize and POST /detokenize, in vLLM's shapes."""

from typing import Any, Final

from fastapi import Request, Response
from pydantic_core import to_json

from tandem_engine.api.front import EngineFront
from tandem_serve.http.admission import SlotRequest
from tandem_serve.http.body import reading
from tandem_serve.http.errors import ApiError
from tandem_serve.http.off_loop import TEXT
from tandem_serve.http.openai_types import DetokenizeRequest, TokenizeRequest
from tandem_serve.http.prompts import Room, encode_messages, encode_texts
from tandem_serve.http.sampling import check_token_ids
from tandem_serve.http.state import HttpState, state_of

TEXT_LINKS: Final = 16
"""The maxLinkNum of these two endpoints: three times as many calls are here at once."""
CONTEXTS: Final = 4
"""A text to tokenize may be this many times as long as the longest context, so that one can see how
much too long it is."""


async def tokenize(request: Request) -> Response:
    """Turn a prompt or messages into token ids."""
    http = state_of(request)
    async with reading(request, TokenizeRequest, http.text_admission) as asked:
        http.check_model(asked.model)
        with http.text_admission.slots(SlotRequest()):
            return await _tokenize(asked, http, http.engine())


async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    http = state_of(request)
    async with reading(request, DetokenizeRequest, http.text_admission) as asked:
        http.check_model(asked.model)
        with http.text_admission.slots(SlotRequest()):
            return await _detokenize(asked, http, http.engine())


async def _tokenize(asked: TokenizeRequest, http: HttpState, engine: EngineFront) -> Response:
    token_ids = await _token_ids(asked, engine, http.settings.max_inline_length)
    document: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": engine.limits.max_seq_len,
        "tokens": token_ids,
        "token_strs": None,
    }
    if asked.return_token_strs:
        document["token_strs"] = await TEXT.run(
            len(token_ids) > http.settings.max_inline_length,
            lambda: [engine.codec.token_text(token_id) for token_id in token_ids],
        )
    return Response(to_json(document), media_type="application/json")


async def _detokenize(asked: DetokenizeRequest, http: HttpState, engine: EngineFront) -> Response:
    most = engine.limits.max_seq_len  # More would take the global lock for too long.
    if len(asked.tokens) > most:
        raise ApiError(
            f"tokens has {len(asked.tokens)} token ids; it must have at most {most}, the longest "
            "context of this server.",
            param="tokens",
            code="invalid_value",
        )
    check_token_ids(asked.tokens, engine.limits.vocab_size, "tokens")
    text = await TEXT.run(
        len(asked.tokens) > http.settings.max_inline_length,
        engine.codec.decode,
        asked.tokens,
        skip_special_tokens=False,
    )
    return Response(to_json({"prompt": text}), media_type="application/json")


async def _token_ids(
    asked: TokenizeRequest, engine: EngineFront, max_inline_length: int
) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError(
            "Send either prompt or messages, and not both.", param="prompt", code="invalid_value"
        )
    room = Room(CONTEXTS * engine.limits.max_seq_len, "/tokenize takes at most")
    if asked.messages is not None:
        _refuse_special_tokens(asked)
        return await encode_messages(
            engine.codec,
            asked.messages,
            add_generation_prompt=asked.add_generation_prompt,
            template_kwargs=asked.chat_template_kwargs,
            max_inline_length=max_inline_length,
            room=room,
        )
    [token_ids] = await encode_texts(
        engine.codec,
        [asked.prompt or ""],
        add_special_tokens=asked.add_special_tokens is not False,
        max_inline_length=max_inline_length,
        room=room,
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
