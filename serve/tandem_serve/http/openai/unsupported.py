"""OpenAI's fields that Tandem does not support: refused by name, with a reason and a way out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_serve.http.errors import ApiError

IGNORED: Final = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Fields for OpenAI's own bookkeeping; ignoring them changes no answer."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that is refused unless its value is harmless."""

    reason: str
    """The missing feature, without a full stop."""
    way_out: str
    """The way out, without a full stop."""
    harmless: tuple[Any, ...] = ()
    """Harmless values, beside null, [] and {}."""

    def is_requested(self, value: Any) -> bool:
        """True when `value` asks for the missing feature."""
        return value not in (None, [], {}, *self.harmless)


_NO_TOOLS: Final = "Tandem does not call tools yet"
_NO_AUDIO: Final = "Tandem answers in text only"
_DESCRIBE_TOOLS: Final = "describe the tools in a message and parse the answer yourself"

_IN_BOTH: Final[dict[str, Unsupported]] = {
    "service_tier": Unsupported(
        "Tandem serves all requests alike", "leave it out or set it to 'auto'", ("auto", "default")
    ),
    "store": Unsupported("Tandem keeps no answers", "leave it out or set it to false", (False,)),
    "response_format": Unsupported(
        "Tandem does not constrain its answers yet",
        "leave it out and ask for the format in the prompt",
        ({"type": "text"},),
    ),
}

UNSUPPORTED_IN_CHAT: Final[dict[str, Unsupported]] = _IN_BOTH | {
    "tools": Unsupported(_NO_TOOLS, _DESCRIBE_TOOLS),
    "tool_choice": Unsupported(_NO_TOOLS, "leave it out or set it to 'none'", ("none",)),
    "functions": Unsupported(_NO_TOOLS, _DESCRIBE_TOOLS),
    "function_call": Unsupported(_NO_TOOLS, "leave it out or set it to 'none'", ("none",)),
    "modalities": Unsupported(_NO_AUDIO, "leave it out or set it to ['text']", (["text"],)),
    "audio": Unsupported(_NO_AUDIO, "leave it out"),
    "prediction": Unsupported("Tandem does not take predicted outputs", "leave it out"),
    "web_search_options": Unsupported("Tandem does not search the web", "leave it out"),
    "reasoning": Unsupported(
        "Tandem does not steer reasoning", "leave it out, or see chat_template_kwargs"
    ),
    "reasoning_effort": Unsupported(
        "Tandem does not steer reasoning", "leave it out, or see chat_template_kwargs", ("none",)
    ),
    "verbosity": Unsupported(
        "Tandem does not steer verbosity", "leave it out and ask in the prompt", ("medium",)
    ),
}

UNSUPPORTED_IN_COMPLETIONS: Final[dict[str, Unsupported]] = _IN_BOTH | {
    "suffix": Unsupported(
        "Tandem does not fill in the middle", "leave it out and put the text into the prompt", ("",)
    ),
}


def refuse_unsupported(document: Mapping[str, Any], table: Mapping[str, Unsupported]) -> None:
    """Refuse the first field of `document` that needs a missing feature of `table`.

    Raises:
        ApiError: such a field is given.
    """
    for name, unsupported in table.items():
        if unsupported.is_requested(document.get(name)):
            raise ApiError(
                f"{name} is not supported: {unsupported.reason}; {unsupported.way_out}.",
                param=name,
                code="unsupported_parameter",
            )
