"""Turns the messages of a chat request into roles and plain texts for a chat template."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_engine.api.model import unknown_field_text
from tandem_serve.http.errors import ApiError, truncate
from tandem_serve.http.openai.validation import as_json, as_sentence, value_kind

_TEMPLATE_ROLE: Final = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name; templates know the older one.
    "user": "user",
    "assistant": "assistant",
}
_ASSISTANT: Final = "assistant"
MAX_NAME_CHARACTERS: Final = 256
_TOOL_ROLES: Final = frozenset({"tool", "function"})
_MISSING: Final = "missing_required_parameter"
_KNOWN: Final = ["role", "content", "name", "reasoning_content", "refusal"]
_FROM_ANSWERS: Final = frozenset(
    {"annotations", "audio", "function_call", "tool_call_id", "tool_calls"}
)
"""Fields of an answer that clients send back; fine while they are empty."""
_REASONING: Final = ("reasoning_content", "reasoning")
"""Names of an answer's reasoning: vLLM's older and newer one; templates know the older."""
KNOWN_OF_MESSAGE: Final = frozenset({*_KNOWN, *_REASONING, *_FROM_ANSWERS})
_TEXT_PARTS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Type of a part that is a text → its field."""


def template_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with known roles and its contents as texts; text parts joined by newlines.

    Raises:
        ApiError: a message is invalid, or needs a feature that Tandem lacks.
    """
    if not messages:
        raise ApiError(
            "messages is empty; send at least one message.", param="messages", code="invalid_value"
        )
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: dict[str, Any], param: str) -> dict[str, Any]:
    role = _role(message.get("role"), f"{param}.role")
    _refuse_other_fields(message, param)
    rendered = {"role": role, "content": _content(message, role, param)}
    rendered |= _named(message.get("name"), f"{param}.name")
    return rendered | _reasoning(message, role, param)


def _content(message: dict[str, Any], role: str, param: str) -> str:
    """The text of a message; an assistant's turn may have none, or a refusal in its place."""
    content = message.get("content")
    if role != _ASSISTANT or content is not None:
        return _text(content, f"{param}.content")
    return _optional_text(message.get("refusal"), f"{param}.refusal")


def _reasoning(message: dict[str, Any], role: str, param: str) -> dict[str, str]:
    """What the assistant thought, for templates that show it."""
    if role != _ASSISTANT:
        return {}
    texts = [_optional_text(message.get(name), f"{param}.{name}") for name in _REASONING]
    return {"reasoning_content": text} if (text := next(filter(None, texts), "")) else {}


def _optional_text(value: Any, param: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _no_string(value, param)
    return value


def _role(role: Any, param: str) -> str:
    if role is None:
        raise ApiError(f"{param} is missing; add it.", param=param, code=_MISSING)
    if isinstance(role, str) and role in _TEMPLATE_ROLE:
        return _TEMPLATE_ROLE[role]
    if isinstance(role, str) and role in _TOOL_ROLES:
        raise ApiError(
            f"{param} is {as_json(role)}, but Tandem does not call tools yet; "
            "put the result into a user message.",
            param=param,
            code="unsupported_value",
        )
    raise ApiError(
        f"{param} is {as_json(role)}; it must be one of {', '.join(_TEMPLATE_ROLE)}.",
        param=param,
        code="invalid_value",
    )


def _named(name: Any, param: str) -> dict[str, str]:
    if name is None:
        return {}
    if not isinstance(name, str):
        raise _no_string(name, param)
    if len(name) > MAX_NAME_CHARACTERS:
        raise ApiError(
            f"{param} has {len(name)} characters; it must have at most {MAX_NAME_CHARACTERS}.",
            param=param,
            code="invalid_value",
        )
    return {"name": name}


def _refuse_other_fields(message: dict[str, Any], param: str) -> None:
    for name, value in message.items():
        if value is None or name in _KNOWN or name in _REASONING:
            continue
        if name in _FROM_ANSWERS and not value:
            continue
        if name in _FROM_ANSWERS:
            raise ApiError(
                f"{param}.{name} is not supported: Tandem reads and writes text only; "
                "leave it out or put it into content as text.",
                param=f"{param}.{name}",
                code="unsupported_parameter",
            )
        raise ApiError(
            as_sentence(f"{param} has an {unknown_field_text(truncate(name), _KNOWN)}"),
            param=f"{param}.{truncate(name)}",
            code="unknown_parameter",
        )


def _text(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise ApiError(f"{param} is missing; add a text.", param=param, code=_MISSING)
    if not isinstance(content, list):
        raise ApiError(
            f"{param} is {value_kind(content)}; it must be a string or a list of text parts.",
            param=param,
            code="invalid_type",
        )
    return "\n".join(_part_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ApiError(
            f"{param} is {value_kind(part)}; it must be an object with type and text.",
            param=param,
            code="invalid_type",
        )
    field = _TEXT_PARTS.get(kind) if isinstance(kind := part.get("type"), str) else None
    if field is None:
        raise ApiError(
            f"{param}.type is {as_json(part.get('type'))}, but Tandem reads text parts only; "
            'send {"type": "text", "text": …}.',
            param=f"{param}.type",
            code="unsupported_value",
        )
    text = part.get(field)
    if not isinstance(text, str):
        raise _no_string(text, f"{param}.{field}")
    return text


def _no_string(value: Any, param: str) -> ApiError:
    return ApiError(
        f"{param} is {value_kind(value)}; it must be a string.", param=param, code="invalid_type"
    )
