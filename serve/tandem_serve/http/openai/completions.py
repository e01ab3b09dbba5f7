"""POST /v1/completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from fastapi import Request, Response

from tandem_engine.api.engine_client import EngineClient, EngineLimits, TextCodec
from tandem_engine.api.output import Output, PromptLogprobs, TokenLogprob
from tandem_engine.api.request import SamplingParams
from tandem_serve.http.errors import ApiError
from tandem_serve.http.offload import TEXT_POOL
from tandem_serve.http.openai.call import generate
from tandem_serve.http.openai.logprobs import TextOffsets, completion_logprobs
from tandem_serve.http.openai.prompts import (
    TEXT_COST,
    check_length,
    encode_texts,
    prompt_limit,
)
from tandem_serve.http.openai.protocol import CompletionRequest
from tandem_serve.http.openai.response import CollectedChoice
from tandem_serve.http.openai.sampling import (
    DEFAULT_COMPLETION_TOKENS,
    check_prompt_logprobs,
    check_prompt_only,
    check_token_ids,
    sampling_params,
)
from tandem_serve.http.openai.shown_prompt import NO_PROMPT, ShownPrompt, ShownPrompts

ID_PREFIX: Final = "cmpl"


async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    return await generate(
        request,
        CompletionRequest,
        CompletionAdapter,
        id_prefix=ID_PREFIX,
        operation="text_completion",
    )


@dataclass(frozen=True, slots=True)
class _Texts:
    each: list[str]


@dataclass(frozen=True, slots=True)
class _TokenIds:
    each: list[list[int]]


class CompletionAdapter:
    """The body of a completion: one or several prompts, texts or token ids."""

    def __init__(self, body: CompletionRequest) -> None:
        """Check the fields that depend on each other.

        Raises:
            ApiError: max_tokens is 0 without need, or prompt is an empty list.
        """
        check_prompt_only(
            body.max_tokens,
            param="max_tokens",
            shows={
                "prompt_logprobs": body.prompt_logprobs is not None,
                "echo": bool(body.echo),
            },
        )
        self._body = body
        self._prompts = _split(body.prompt)
        self._first_tokens: list[int] = []

    @property
    def num_prompts(self) -> int:
        """Prompts of the call."""
        return len(self._prompts.each)

    async def encode(self, engine: EngineClient, max_inline_length: int) -> list[list[int]]:
        """Return the token ids of each prompt."""
        prompts = await self._encode(engine, max_inline_length)
        check_prompt_logprobs(prompts, self._body.n or 1, self._num_prompt_logprobs)
        self._first_tokens = [token_ids[0] for token_ids in prompts]
        return prompts

    async def _encode(self, engine: EngineClient, max_inline_length: int) -> list[list[int]]:
        match self._prompts:
            case _Texts(each=texts):
                prompts = await encode_texts(
                    engine.codec,
                    texts,
                    add_special_tokens=self._body.add_special_tokens is not False,
                    max_inline_length=max_inline_length,
                    limit=prompt_limit(engine.limits),
                )
                check = _check_lengths
            case _TokenIds(each=prompts):
                check = _check_ids
        is_long = TEXT_COST * len(prompts) > max_inline_length
        await TEXT_POOL.run(is_long, check, prompts, engine.limits)
        return prompts

    def sampling(self, _prompts: Sequence[list[int]], engine: EngineClient) -> SamplingParams:
        """Return the parameters of all prompts."""
        return sampling_params(
            self._body,
            engine,
            max_tokens=self._body.max_tokens,
            default_max_tokens=DEFAULT_COMPLETION_TOKENS,
            logprobs=self._body.logprobs,
            prompt_logprobs=self._num_prompt_logprobs,
        )

    @property
    def _num_prompt_logprobs(self) -> int | None:
        """Likeliest tokens at each position of a prompt, for either form; None: for none."""
        body = self._body
        asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
        return max((count for count in asked if count is not None), default=None)

    async def formatter(self, codec: TextCodec, max_inline_length: int) -> "CompletionFormatter":
        """Return a formatter of texts, which echoes the prompts if the body says so."""
        body = self._body
        prompts = ShownPrompts(
            codec=codec,
            first_tokens=self._first_tokens,
            echoes=await _echoes(self._prompts, codec, max_inline_length) if body.echo else (),
            num_echoed=body.logprobs,
            num_top=body.prompt_logprobs,
            choices_per_prompt=body.n or 1,
        )
        return CompletionFormatter(codec, prompts, has_logprobs=body.logprobs is not None)


def _split(prompt: str | list[str] | list[int] | list[list[int]]) -> _Texts | _TokenIds:
    if isinstance(prompt, str):
        return _Texts([prompt])
    if not prompt:
        raise ApiError(
            "prompt is an empty list; send at least one text or token id.",
            param="prompt",
            code="invalid_value",
        )
    if _are_texts(prompt):
        return _Texts(prompt)
    if _are_ids(prompt):
        return _TokenIds([prompt])
    return _TokenIds([ids for ids in prompt if isinstance(ids, list)])


def _are_texts(prompt: list[Any]) -> TypeGuard[list[str]]:
    return isinstance(prompt[0], str)


def _are_ids(prompt: list[Any]) -> TypeGuard[list[int]]:
    return isinstance(prompt[0], int)


def _check_lengths(prompts: Sequence[list[int]], limits: EngineLimits) -> None:
    for i, token_ids in enumerate(prompts):
        check_length(len(token_ids), limits, f"prompt[{i}]" if len(prompts) > 1 else "prompt")


def _check_ids(prompts: Sequence[list[int]], limits: EngineLimits) -> None:
    _check_lengths(prompts, limits)  # first: it is the cheaper one
    for token_ids in prompts:
        check_token_ids(token_ids, limits.vocab_size, "prompt")


async def _echoes(
    prompts: _Texts | _TokenIds, codec: TextCodec, max_inline_length: int
) -> list[str]:
    match prompts:
        case _Texts(each=texts):
            return texts
        case _TokenIds(each=lists):
            cost = sum(map(len, lists)) + TEXT_COST * len(lists)
            return await TEXT_POOL.run(
                cost > max_inline_length, lambda: [codec.decode(each) for each in lists]
            )


class CompletionFormatter:
    """Choices as texts, whole or in pieces, after their prompts if these are echoed."""

    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def __init__(self, codec: TextCodec, prompts: ShownPrompts, *, has_logprobs: bool) -> None:
        self._codec = codec
        self._prompts = prompts
        self._has_logprobs = has_logprobs
        # Of the choices that have begun.
        self._offsets: dict[int, TextOffsets] = {}

    def head_fields(self) -> dict[str, Any]:
        """No further fields."""
        return {}

    def chunk_choices(self, index: int, output: Output) -> list[dict[str, Any]]:
        """The choice of one chunk; the first of each choice has its prompt."""
        prompt = self._begin(index, output.prompt_logprobs)
        has_logprobs = bool(output.logprobs) or prompt.logprobs is not None
        return [
            {
                "index": index,
                "text": prompt.text + output.text,
                "logprobs": self._logprobs(index, output.logprobs, prompt)
                if has_logprobs
                else None,
                "finish_reason": output.finish_reason,
                **prompt.members,
            }
        ]

    def full_choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        """A choice of a whole answer."""
        prompt = self._begin(index, choice.prompt_logprobs)
        return {
            "index": index,
            "text": prompt.text + "".join(choice.texts),
            "logprobs": self._logprobs(index, choice.logprobs, prompt),
            "finish_reason": choice.finish_reason,
            **prompt.members,
        }

    def answer_members(self, _prompt_logprobs: PromptLogprobs | None) -> dict[str, Any]:
        """Nothing: each prompt has choices of its own."""
        return {}

    def _begin(self, index: int, logprobs: PromptLogprobs | None) -> ShownPrompt:
        """The prompt of a choice, once."""
        if index in self._offsets:
            return NO_PROMPT
        prompt = self._prompts.of_choice(index, logprobs)
        self._offsets[index] = TextOffsets(len(prompt.text))
        return prompt

    def _logprobs(
        self, index: int, tokens: Sequence[TokenLogprob], prompt: ShownPrompt
    ) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        offsets = self._offsets[index]
        starts = [offsets.advance(self._codec.token_bytes(token.token_id)) for token in tokens]
        form = completion_logprobs(self._codec, tokens, starts)
        if prompt.logprobs is None:
            return form
        return {name: [*values, *form[name]] for name, values in prompt.logprobs.items()}
