"""The bodies of requests: OpenAI's fields, and those that vLLM and MindIE added to them.

Only shapes and lengths are checked here. Ranges of sampling parameters are the engine's to check,
except where OpenAI's name for a value is not the engine's. The first error ends the
check: pydantic keeps hundreds of bytes for each, and a body may have a million of them.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tandem_engine.api.model import unknown_field_text
from tandem_engine.api.request import (
    MAX_BIASED_TOKENS,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
)
from tandem_serve.http.errors import truncate
from tandem_serve.http.openai.unsupported import (
    IGNORED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    Unsupported,
)

MAX_MESSAGES: Final = 2048
"""OpenAI's limit."""
MAX_STOP_TOKEN_IDS: Final = 1024
MAX_TEMPLATE_KWARGS: Final = 64
MAX_MODEL_CHARACTERS: Final = 256


def at_most(most: int, items: str) -> BeforeValidator:
    """A text, list or object of limited length, refused before any item is checked."""

    def check(value: Any) -> Any:
        if isinstance(value, (str, list, dict)) and len(value) > most:
            raise too_many(len(value), most, items)
        return value

    return BeforeValidator(check)


def too_many(count: int, most: int, items: str) -> PydanticCustomError:
    """Error for a value that has too many `items`."""
    context = {"count": count, "most": most, "items": items}
    return PydanticCustomError("too_many", "at most {most} {items}", context)


def expects(what: str) -> WrapValidator:
    """A value of several shapes: one sentence for all of them when none fits.

    It names the first item that does not fit, where the value is a list.
    """

    def check(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            for wrong in error.errors(include_url=False):
                # The names among the indices are those of the shapes that were tried.
                if location := tuple(at for at in wrong["loc"] if isinstance(at, int)):
                    item = {"what": what, "location": location, "value": wrong["input"]}
                    raise PydanticCustomError("wrong_item", "{what}", item) from error
            raise PydanticCustomError("wrong_shape", "{what}", {"what": what}) from error

    return WrapValidator(check)


def _prompt_kind(value: Any) -> str:
    """The kind of prompt that the first element of a list makes it; all others must agree."""
    if not isinstance(value, list):
        return "text"
    match value[:1]:
        case [str()]:
            return "texts"
        case [list()]:
            return "lists"
        case _:
            return "ids"


Number = Annotated[float, expects("a number")]


def _refuse_whole_vocabulary(value: Any) -> Any:
    if value == -1:
        what = (
            f"0 to {MAX_TOP_LOGPROBS}: the whole vocabulary at each position, which -1 asks for, "
            "would be gigabytes"
        )
        raise PydanticCustomError("wrong_shape", "{what}", {"what": what})
    return value


TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
PromptTopLogprobs = Annotated[TopLogprobs, BeforeValidator(_refuse_whole_vocabulary)]
MaxTokens = Annotated[int, Field(ge=0)]
Stop = Annotated[
    str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)],
    expects(f"a string or a list of at most {MAX_STOP_STRINGS} strings"),
]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[str], Field(fail_fast=True), Tag("texts")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("lists")],
    Discriminator(_prompt_kind),
    expects("a string, a list of strings, a list of token ids or a list of such lists"),
]
EarlyStopping = Annotated[bool | Literal["never"], expects('true, false or "never"')]
LogitBias = Annotated[
    dict[str, float],
    expects("an object of token ids and numbers"),
    at_most(MAX_BIASED_TOKENS, "token ids"),
]
StopTokenIds = Annotated[TokenIds, at_most(MAX_STOP_TOKEN_IDS, "token ids")]
ModelName = Annotated[str, at_most(MAX_MODEL_CHARACTERS, "characters")]
Messages = Annotated[
    list[dict[str, Any]],
    Field(fail_fast=True),
    expects("a list of messages"),
    at_most(MAX_MESSAGES, "messages"),
]
TemplateKwargs = Annotated[dict[str, Any], at_most(MAX_TEMPLATE_KWARGS, "members")]


class RequestModel(BaseModel):
    """A body that refuses unknown fields but null, and names the nearest known one."""

    model_config = ConfigDict(strict=True, frozen=True)

    ignored: ClassVar[frozenset[str]] = frozenset()
    """Fields that are accepted and have no effect."""
    unsupported: ClassVar[dict[str, Unsupported]] = {}
    """Fields that are refused with a reason unless their value is harmless."""

    @classmethod
    def known(cls) -> frozenset[str]:
        """Names of the fields that are implemented, without effect, or refused by name."""
        return frozenset({*cls.model_fields, *cls.ignored, *cls.unsupported})

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.known()
        for name, value in data.items():
            if name not in known and value is not None:
                short = truncate(name)
                text = unknown_field_text(short, sorted(cls.model_fields))
                raise PydanticCustomError("unknown_field", "{text}", {"text": text, "name": short})
        return data


class StreamOptions(RequestModel):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send one more chunk, without choices, that has the usage."""
    continuous_usage_stats: bool | None = None
    """With include_usage: let each chunk have the usage so far, as in vLLM."""
    include_obfuscation: bool | None = None
    """OpenAI pads chunks with noise; Tandem never does."""


class GenerationRequest(RequestModel):
    """Fields that chat and completions share; None means the default."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: MaxTokens | None = None
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
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: Number | None = None
    early_stopping: EarlyStopping | None = None
    priority: int | None = None
    cache_salt: str | None = None
    prompt_logprobs: PromptTopLogprobs | None = None

    @property
    def includes_usage(self) -> bool:
        """True when the stream is to end with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """True when each chunk is to have the usage so far."""
        options = self.stream_options
        return self.includes_usage and options is not None and bool(options.continuous_usage_stats)


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    ignored = IGNORED
    unsupported = UNSUPPORTED_IN_CHAT

    messages: Messages
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None


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

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """The body of POST /detokenize."""

    model: ModelName | None = None
    tokens: Annotated[TokenIds, expects("a list of token ids")]
