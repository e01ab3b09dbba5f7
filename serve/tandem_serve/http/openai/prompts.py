"""Turns texts and messages into token ids that fit into the engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from tandem_engine.api.engine_client import EngineLimits, TextCodec
from tandem_serve.http import errors
from tandem_serve.http.errors import ApiError
from tandem_serve.http.offload import TEXT_POOL
from tandem_serve.http.openai.messages import template_messages

SHRINKAGE: Final = 4
"""A tokenizer may normalise a text before it cuts it into tokens; it shortens none by more."""
USUAL_CHARS: Final = 4
"""Characters of a token in usual texts: longer texts are first checked in pieces."""
MESSAGE_COST: Final = 64
"""Cost of rendering a message, as a multiple of a character of it."""
TEXT_COST: Final = 64
"""Cost of a text to tokenize or of a prompt to check, as a multiple of a character to tokenize."""
MAX_TEMPLATE_VALUES: Final = 4096
"""Values in chat_template_kwargs, those in lists and objects included."""


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt."""

    num_tokens: int
    context: int
    """Tokens of prompt and answer together, at most."""
    text: str
    """The limit in words, to be read after that of the context."""

    def exceeded(self, excess: str, param: str) -> ApiError:
        """An error with OpenAI's words, by which clients tell it from others.

        Args:
            excess: Tokens or characters of `param`, with their number.
            param: The field that is too long.
        """
        return errors.prompt_too_long(
            f"This model's maximum context length is {self.context} tokens, {self.text}; "
            f"{param} has {excess}. Shorten it.",
            param,
        )


def prompt_limit(limits: EngineLimits) -> PromptLimit:
    """The longest prompt that the engine can continue."""
    longest = min(limits.max_input_token_len, limits.max_seq_len - 1)
    return PromptLimit(longest, limits.max_seq_len, f"of which a prompt may have {longest}")


async def encode_texts(
    codec: TextCodec,
    texts: Sequence[str],
    *,
    add_special_tokens: bool,
    max_inline_length: int,
    limit: PromptLimit,
) -> list[list[int]]:
    """Token ids of each text.

    Raises:
        ApiError: a text is longer than what could fit into `limit`.
    """
    for text in texts:
        _check_characters(len(text), codec, limit, "prompt")

    def encode() -> list[list[int]]:
        return [encode_text(text) for text in texts]

    def encode_text(text: str) -> list[int]:
        _check_pieces(text, codec, limit, "prompt")
        return codec.encode(text, add_special_tokens=add_special_tokens)

    cost = sum(map(len, texts)) + TEXT_COST * len(texts)
    return await TEXT_POOL.run(cost > max_inline_length, encode)


async def encode_messages(
    codec: TextCodec,
    messages: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    template_kwargs: dict[str, Any] | None,
    max_inline_length: int,
    limit: PromptLimit,
) -> list[int]:
    """Token ids of a conversation.

    Raises:
        ApiError: a message is not understood, they are longer than what could fit into `limit`, or
            the answer is to begin a turn and to continue one.
        InvalidParameter: the chat template refuses the messages, or there is none.
    """
    num_of_kwargs = _characters_of(template_kwargs)
    begins_turn = _begins_turn(add_generation_prompt, continue_final_message)

    def encode() -> list[int]:
        plain = template_messages(messages)
        texts = [text for message in plain for text in _texts(message)]
        num_characters = sum(map(len, texts)) + num_of_kwargs
        _check_characters(num_characters, codec, limit, "messages")
        _check_pieces("\n".join(texts), codec, limit, "messages")
        return codec.encode_chat(
            plain,
            add_generation_prompt=begins_turn,
            continue_final_message=bool(continue_final_message),
            template_kwargs=template_kwargs,
        )

    return await TEXT_POOL.run(_cost(messages) + num_of_kwargs > max_inline_length, encode)


def _begins_turn(add_generation_prompt: bool | None, continue_final_message: bool | None) -> bool:
    """True if the template opens the assistant's turn; it does unless one goes on."""
    if not continue_final_message:
        return add_generation_prompt is not False
    if add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are both true, but an answer either "
            "goes on with the last message or begins a turn; leave one of them out.",
            param="continue_final_message",
            code="invalid_value",
        )
    return False


def _cost(messages: Sequence[dict[str, Any]]) -> int:
    """Cost of rendering the messages, in characters."""
    return sum(
        MESSAGE_COST
        + _cost_of_content(message.get("content"))
        + sum(len(text) for name, text in message.items() if _is_other_text(name, text))
        for message in messages
    )


def _texts(message: dict[str, Any]) -> Iterator[str]:
    """What a template may write of a rendered message beside its role."""
    yield message["content"]
    yield from (text for name, text in message.items() if _is_other_text(name, text))


def _is_other_text(name: str, value: Any) -> bool:
    return name not in ("role", "content") and isinstance(value, str)


def _cost_of_content(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(MESSAGE_COST + _longest_text(part) for part in content)
    return 0


def _longest_text(part: Any) -> int:
    text = part.get("text") if isinstance(part, dict) else None
    return len(text) if isinstance(text, str) else 0


def _characters_of(template_kwargs: dict[str, Any] | None) -> int:
    """Characters of all values; the template may write each of them into the prompt.

    Raises:
        ApiError: there are too many values.
    """
    num_characters = 0
    for num_before, value in enumerate(_values(template_kwargs or {})):
        if num_before == MAX_TEMPLATE_VALUES:
            raise ApiError(
                f"chat_template_kwargs has more than {MAX_TEMPLATE_VALUES} values, those in lists "
                "and objects included; send fewer.",
                param="chat_template_kwargs",
                code="invalid_value",
            )
        num_characters += len(value) if isinstance(value, str) else 1
    return num_characters


def _values(kwargs: dict[str, Any]) -> Iterator[Any]:
    """All that is in `kwargs`, at any depth: texts, numbers, names, lists, objects."""
    containers: list[Any] = [kwargs]
    while containers:
        container = containers.pop()
        is_object = isinstance(container, dict)
        for value in chain(container, container.values()) if is_object else container:
            yield value
            if isinstance(value, (dict, list)):
                containers.append(value)


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
    limit = prompt_limit(limits)
    if num_tokens > limit.num_tokens:
        raise limit.exceeded(f"{num_tokens} tokens", param)


def _check_characters(
    num_characters: int, codec: TextCodec, limit: PromptLimit, param: str
) -> None:
    """Refuse a text that cannot fit before it is tokenized, which may take seconds."""
    if num_characters > SHRINKAGE * limit.num_tokens * codec.max_token_chars:
        raise limit.exceeded(f"{num_characters} characters, which are far more", param)


def _check_pieces(text: str, codec: TextCodec, limit: PromptLimit, param: str) -> None:
    """Refuse a text of far too many tokens before all of it is tokenized.

    A tokenizer takes a hundred bytes of memory for each token, and four times as many tokens as
    characters where a text is of rare ones: a text of the largest body would cost a gigabyte.
    """
    size = max(USUAL_CHARS * limit.num_tokens, 1)
    if len(text) <= size:
        return
    num_tokens = 0
    for start in range(0, len(text), size):
        # A cut may make a token into many.
        piece = codec.encode(text[start : start + size], add_special_tokens=False)
        num_tokens += max(0, len(piece) - codec.max_token_chars)
        if num_tokens > limit.num_tokens:
            raise limit.exceeded(f"{len(text)} characters, which make far more", param)
