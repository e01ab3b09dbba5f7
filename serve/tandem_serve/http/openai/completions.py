"""POST /v1/completions."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from fastapi import Request, Response

from tandem_engine.api.engine_client import EngineClient, EngineLimits, TextCodec
from tandem_engine.api.output import Output, TokenLogprob
from tandem_engine.api.request import SamplingParams
from tandem_serve.http.errors import ApiError
from tandem_serve.http.offload import TEXT_POOL
from tandem_serve.http.openai.call import generate
from tandem_serve.http.openai.logprobs import TextOffsets, completion_logprobs
from tandem_serve.http.openai.prompts import check_length, encode_texts, prompt_limit
from tandem_serve.http.openai.protocol import CompletionRequest
from tandem_serve.http.openai.response import CollectedChoice
from tandem_serve.http.openai.sampling import (
    DEFAULT_COMPLETION_TOKENS,
    check_token_ids,
    sampling_params,
)

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
            ApiError: echo does not go with logprobs, or prompt is an empty list.
        """
        _check_echo(body)
        self._body = body
        self._prompts = _split(body.prompt)

    @property
    def num_prompts(self) -> int:
        """Prompts of the call."""
        return len(self._prompts.each)

    async def encode(self, engine: EngineClient, max_inline_length: int) -> list[list[int]]:
        """Return the token ids of each prompt."""
        match self._prompts:
            case _Texts(each=texts):
                prompts = await encode_texts(
                    engine.codec,
                    texts,
                    add_special_tokens=self._body.add_special_tokens is not False,
                    max_inline_length=max_inline_length,
                    limit=prompt_limit(engine.limits),
                )
                _check_lengths(prompts, engine.limits)
                return prompts
            case _TokenIds(each=prompts):
                _check_lengths(prompts, engine.limits)  # first: it is the cheaper one
                for token_ids in prompts:
                    check_token_ids(token_ids, engine.limits.vocab_size, "prompt")
                return prompts

    def sampling(self, _prompts: Sequence[list[int]], engine: EngineClient) -> SamplingParams:
        """Return the parameters of all prompts."""
        return sampling_params(
            self._body,
            engine,
            max_tokens=self._body.max_tokens,
            default_max_tokens=DEFAULT_COMPLETION_TOKENS,
            logprobs=self._body.logprobs,
        )

    async def formatter(self, codec: TextCodec, max_inline_length: int) -> "CompletionFormatter":
        """Return a formatter of texts, which echoes the prompts if the body says so."""
        is_echoed = bool(self._body.echo)
        return CompletionFormatter(
            codec,
            has_logprobs=self._body.logprobs is not None,
            echoes=await _echoes(self._prompts, codec, max_inline_length) if is_echoed else (),
            choices_per_prompt=self._body.n or 1,
        )


def _check_echo(body: CompletionRequest) -> None:
    if body.echo and body.logprobs is not None:
        raise ApiError(
            "echo together with logprobs is not supported: Tandem computes no log-probabilities "
            "of prompts; leave out one of them.",
            param="echo",
            code="unsupported_parameter",
        )


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


async def _echoes(
    prompts: _Texts | _TokenIds, codec: TextCodec, max_inline_length: int
) -> list[str]:
    match prompts:
        case _Texts(each=texts):
            return texts
        case _TokenIds(each=lists):
            is_long = sum(map(len, lists)) > max_inline_length
            return await TEXT_POOL.run(is_long, lambda: [codec.decode(each) for each in lists])


class CompletionFormatter:
    """Choices as texts, whole or in pieces, after their prompts if these are echoed."""

    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def __init__(
        self,
        codec: TextCodec,
        *,
        has_logprobs: bool,
        echoes: Sequence[str],
        choices_per_prompt: int,
    ) -> None:
        self._codec = codec
        self._has_logprobs = has_logprobs
        self._echoes = echoes
        self._choices_per_prompt = choices_per_prompt
        self._begun: set[int] = set()
        self._offsets: defaultdict[int, TextOffsets] = defaultdict(TextOffsets)

    def chunk_choice(self, index: int, output: Output) -> dict[str, Any]:
        """A choice of a chunk; the first of each choice has the echo."""
        return {
            "index": index,
            "text": self._echo(index) + output.text,
            "logprobs": self._logprobs(index, output.logprobs) if output.logprobs else None,
            "finish_reason": output.finish_reason,
        }

    def full_choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        """A choice of a whole answer."""
        return {
            "index": index,
            "text": self._echo(index) + "".join(choice.texts),
            "logprobs": self._logprobs(index, choice.logprobs),
            "finish_reason": choice.finish_reason,
        }

    def _echo(self, index: int) -> str:
        if not self._echoes or index in self._begun:
            return ""
        self._begun.add(index)
        return self._echoes[index // self._choices_per_prompt]

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        offsets = self._offsets[index]
        starts = [offsets.advance(self._codec.token_bytes(token.token_id)) for token in tokens]
        return completion_logprobs(self._codec, tokens, starts)
