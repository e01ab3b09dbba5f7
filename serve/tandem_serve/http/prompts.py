"""From texts and messages to token ids that fit into the engine."""

from collections.abc import Sequence
from typing import Any, Final

from tandem_engine.api.front import EngineLimits, TextCodec
from tandem_serve.http import errors
from tandem_serve.http.errors import ApiError
from tandem_serve.http.messages import template_messages
from tandem_serve.http.off_loop import run_off_loop

SHRINKAGE: Final = 4
"""A tokenizer may normalise a text before it cuts it into tokens; no text shrinks more."""


async def encode_texts(
    codec: TextCodec,
    texts: Sequence[str],
    *,
    add_special_tokens: bool,
    max_inline_length: int,
    limits: EngineLimits | None = None,
) -> list[list[int]]:
    """Token ids of each text.

    Raises:
        ApiError: a text is longer than what could fit into `limits`.
    """
    for text in texts:
        _check_characters(len(text), codec, limits, "prompt")

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
    limits: EngineLimits | None = None,
) -> list[int]:
    """Token ids of a conversation.

    Raises:
        ApiError: a message is not understood, or they are longer than what could fit into `limits`.
        InvalidParameter: the chat template refuses the messages, or there is none.
    """
    plain = template_messages(messages)
    num_characters = sum(len(message["content"]) for message in plain)
    _check_characters(num_characters, codec, limits, "messages")
    return await run_off_loop(
        num_characters > max_inline_length,
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
    longest = _longest_prompt(limits)
    if num_tokens > longest:
        raise errors.prompt_too_long(
            f"{param} has {num_tokens} tokens; this server takes at most {longest} "
            f"(prompt and answer together: {limits.max_seq_len}). Shorten it.",
            param,
        )


def _longest_prompt(limits: EngineLimits) -> int:
    return min(limits.max_input_token_len, limits.max_seq_len - 1)


def _check_characters(
    num_characters: int, codec: TextCodec, limits: EngineLimits | None, param: str
) -> None:
    """Refuse a text that cannot fit before it is tokenized, which may take seconds."""
    if limits is None:
        return
    longest = _longest_prompt(limits)
    if num_characters > SHRINKAGE * longest * codec.max_token_chars:
        raise errors.prompt_too_long(
            f"{param} has {num_characters} characters, far more than the {longest} tokens that "
            f"this server takes at most (prompt and answer together: {limits.max_seq_len}). "
            "Shorten it.",
            param,
        )
