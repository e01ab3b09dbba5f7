"""From texts and messages to token ids that fit into the engine."""

from collections.abc import Sequence
from typing import Any

from tandem_engine.api.front import EngineLimits, TextCodec
from tandem_serve.http import errors
from tandem_serve.http.errors import ApiError
from tandem_serve.http.messages import template_messages
from tandem_serve.http.off_loop import run_off_loop


async def encode_texts(
    codec: TextCodec, texts: Sequence[str], *, add_special_tokens: bool, max_inline_length: int
) -> list[list[int]]:
    """Token ids of each text."""

    def encode() -> list[list[int]]:
        return [codec.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    return await run_off_loop(sum(map(len, texts)) > max_inline_length, encode)


async def encode_messages(
    codec: TextCodec,
    messages: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool | None,
    template_kwargs: dict[str, Any] | None,
    max_inline_length: int,
) -> list[int]:
    """Token ids of a conversation.

    Raises:
        ApiError: a message is not understood.
        InvalidParameter: the chat template refuses the messages, or there is none.
    """
    plain = template_messages(messages)
    return await run_off_loop(
        sum(len(message["content"]) for message in plain) > max_inline_length,
        codec.encode_chat,
        plain,
        add_generation_prompt=add_generation_prompt is not False,
        template_kwargs=template_kwargs,
    )


def check_length(num_tokens: int, limits: EngineLimits, param: str) -> None:
    """Refuse a prompt that leaves no room for an answer, and one without tokens.

    Raises:
        ApiError: the prompt is too long or empty.
    """
    if num_tokens == 0:
        raise ApiError(
            f"{param} has no tokens; the model needs at least one to continue.",
            param=param,
            code="invalid_value",
        )
    longest = min(limits.max_input_token_len, limits.max_seq_len - 1)
    if num_tokens > longest:
        raise errors.prompt_too_long(
            f"{param} has {num_tokens} tokens; this server takes at most {longest} "
            f"(prompt and answer together: {limits.max_seq_len}). Shorten it.",
            param,
        )
