"""The bodies of requests: OpenAI's fields, and those that vLLM and MindIE added to them.

Only shapes are checked here. Ranges of sampling parameters are the engine's to check, except
where OpenAI's name for a value is not the engine's.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from tandem_engine.api.model import unknown_field_text
from tandem_engine.api.request import MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from tandem_serve.http.unsupported import (
    IGNORED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    Unsupported,
)


def expects(what: str) -> WrapValidator:
    """A value of several shapes: one sentence for all of them when none fits."""

    def check(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("wrong_shape", "{what}", {"what": what}) from error

    return WrapValidator(check)


Number = Annotated[float, expects("a number")]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
Stop = Annotated[
    str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)],
    expects(f"a string or a list of at most {MAX_STOP_STRINGS} strings"),
]
Prompt = Annotated[
    str | list[int] | list[str] | list[list[int]],
    expects("a string, a list of strings, a list of token ids or a list of such lists"),
]
EarlyStopping = Annotated[bool | Literal["never"], expects('true, false or "never"')]
LogitBias = Annotated[dict[str, float], expects("an object of token ids and numbers")]


class RequestModel(BaseModel):
    """A body that refuses what it does not know, and names the nearest thing that it knows."""

    model_config = ConfigDict(strict=True, frozen=True)

    ignored: ClassVar[frozenset[str]] = frozenset()
    """Fields that may be given and change nothing here."""
    unsupported: ClassVar[dict[str, Unsupported]] = {}
    """Fields that are refused with a reason if they ask for something."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields.keys() | cls.ignored | cls.unsupported.keys()
        for name in data:
            if name not in known:
                text = unknown_field_text(name, sorted(cls.model_fields))
                raise PydanticCustomError("unknown_field", "{text}", {"text": text, "name": name})
        return data


class StreamOptions(RequestModel):
    """How to stream."""

    include_usage: bool | None = None
    """Send one more chunk, without choices, that has the usage."""
    include_obfuscation: bool | None = None
    """OpenAI pads chunks with noise; Tandem does not, whatever this says."""


class GenerationRequest(RequestModel):
    """What chat and completions have in common; None means the default."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    min_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: LogitBias | None = None
    seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: Number | None = None
    early_stopping: EarlyStopping | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether the stream is to end with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    ignored = IGNORED
    unsupported = UNSUPPORTED_IN_CHAT

    messages: Annotated[list[dict[str, Any]], expects("a list of messages")]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    ignored = IGNORED
    unsupported = UNSUPPORTED_IN_COMPLETIONS

    prompt: Prompt
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(RequestModel):
    """The body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], expects("a list of messages")] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], expects("a list of token ids")]
