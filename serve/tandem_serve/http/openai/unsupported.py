"""OpenAI's fields that Tandem does not support: refused by name, with a reason and a way out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tandem_serve.http.errors import ApiError

IGNORED: Final = frozenset(
    {
        # OpenAI's bookkeeping, prices and caches.
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        # What they are about is refused by a field of its own, or cannot come.
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "parallel_tool_calls",
        # A guess at the answer, for speed.
        "prediction",
        # Its id is the header x-request-id.
        "request_id",
        # Of vLLM's slow tokenizers.
        "spaces_between_special_tokens",
    }
)
"""Fields of OpenAI and vLLM whose value changes no answer."""


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

_NO_CONSTRAINTS: Final = Unsupported(
    "Tandem does not constrain its answers yet", "leave it out and ask for the format in the prompt"
)
_NO_PROMPT_EMBEDS: Final = "Tandem computes on token ids alone"
_NO_TOKEN_IDS: Final = Unsupported(
    "Tandem answers with texts alone", "leave it out, and send the text to /tokenize", (False,)
)
_NO_KV_TRANSFER: Final = "Tandem's replicas do not exchange KV blocks"

_IN_BOTH: Final[dict[str, Unsupported]] = {
    "response_format": replace(_NO_CONSTRAINTS, harmless=({"type": "text"},)),
    **dict.fromkeys(
        (
            "structured_outputs",
            "structural_tag",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
        ),
        _NO_CONSTRAINTS,
    ),
    "allowed_token_ids": Unsupported(
        "Tandem does not limit the vocabulary", "leave it out, or see logit_bias"
    ),
    "bad_words": Unsupported("Tandem forbids no words", "leave it out, or see logit_bias"),
    "logits_processors": Unsupported(
        "Tandem runs no code of a request", "leave it out, or see logit_bias"
    ),
    "vllm_xargs": Unsupported("Tandem has no plug-ins for sampling", "leave it out"),
    "include_stop_str_in_output": Unsupported(
        "Tandem leaves stop strings out of answers",
        "leave it out and add the text yourself",
        (False,),
    ),
    "truncate_prompt_tokens": Unsupported(
        "Tandem cuts no prompts", "leave it out and shorten the prompt"
    ),
    "return_tokens_as_token_ids": _NO_TOKEN_IDS,
    "return_token_ids": _NO_TOKEN_IDS,
    "kv_transfer_params": Unsupported(_NO_KV_TRANSFER, "leave it out"),
}

UNSUPPORTED_IN_CHAT: Final[dict[str, Unsupported]] = _IN_BOTH | {
    "tools": Unsupported(_NO_TOOLS, _DESCRIBE_TOOLS),
    "tool_choice": Unsupported(_NO_TOOLS, "leave it out or set it to 'none'", ("none", "auto")),
    "functions": Unsupported(_NO_TOOLS, _DESCRIBE_TOOLS),
    "function_call": Unsupported(_NO_TOOLS, "leave it out or set it to 'none'", ("none", "auto")),
    "modalities": Unsupported(_NO_AUDIO, "leave it out or set it to ['text']", (["text"],)),
    "audio": Unsupported(_NO_AUDIO, "leave it out"),
    "web_search_options": Unsupported("Tandem does not search the web", "leave it out"),
    "reasoning": Unsupported(
        "Tandem does not steer reasoning", "leave it out, or see chat_template_kwargs"
    ),
    "reasoning_effort": Unsupported(
        "Tandem does not steer reasoning", "leave it out, or see chat_template_kwargs", ("none",)
    ),
    "include_reasoning": Unsupported(
        "Tandem does not tell reasoning from the answer", "leave it out and cut the text", (True,)
    ),
    "chat_template": Unsupported(
        "the chat template is the checkpoint's", "leave it out, or see chat_template_kwargs"
    ),
    "documents": Unsupported(
        "Tandem gives a chat template what chat_template_kwargs has", "put them there"
    ),
    "echo": Unsupported("Tandem answers with the new turn alone", "leave it out", (False,)),
    "add_special_tokens": Unsupported(
        "the chat template puts the special tokens", "leave it out", (False,)
    ),
    "verbosity": Unsupported(
        "Tandem does not steer verbosity", "leave it out and ask in the prompt", ("medium",)
    ),
}

UNSUPPORTED_IN_COMPLETIONS: Final[dict[str, Unsupported]] = _IN_BOTH | {
    "prompt_embeds": Unsupported(_NO_PROMPT_EMBEDS, "leave it out and send prompt"),
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
