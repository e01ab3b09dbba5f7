"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import Request, Response

from tandem_engine.api.engine_client import EngineClient, TextCodec
from tandem_engine.api.output import FinishReason, Output, PromptLogprobs
from tandem_engine.api.request import SamplingParams
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.call import generate
from tandem_serve.http.openai.logprobs import chat_logprobs, prompt_logprobs
from tandem_serve.http.openai.prompts import check_length, encode_messages, prompt_limit
from tandem_serve.http.openai.protocol import ChatRequest
from tandem_serve.http.openai.response import CollectedChoice
from tandem_serve.http.openai.sampling import (
    check_prompt_logprobs,
    check_prompt_only,
    sampling_params,
)

ID_PREFIX: Final = "chatcmpl"


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    return await generate(request, ChatRequest, ChatAdapter, id_prefix=ID_PREFIX, operation="chat")


class ChatAdapter:
    """The body of a chat completion: one prompt, rendered from messages."""

    num_prompts = 1

    def __init__(self, body: ChatRequest) -> None:
        """Check the fields that depend on each other.

        Raises:
            ApiError: top_logprobs does not go with another field, or max_tokens is 0 without need.
        """
        self._body = body
        self._num_logprobs = _num_logprobs(body)
        self._max_tokens = _max_tokens(body)

    async def encode(self, engine: EngineClient, max_inline_length: int) -> list[list[int]]:
        """Return the token ids of the conversation."""
        token_ids = await encode_messages(
            engine.codec,
            self._body.messages,
            add_generation_prompt=self._body.add_generation_prompt,
            continue_final_message=self._body.continue_final_message,
            template_kwargs=self._body.chat_template_kwargs,
            max_inline_length=max_inline_length,
            limit=prompt_limit(engine.limits),
        )
        check_length(len(token_ids), engine.limits, "messages")
        check_prompt_logprobs([token_ids], 1, self._body.prompt_logprobs)
        return [token_ids]

    def sampling(self, prompts: Sequence[list[int]], engine: EngineClient) -> SamplingParams:
        """Return the parameters; without max_tokens the answer may fill the context."""
        [token_ids] = prompts
        return sampling_params(
            self._body,
            engine,
            max_tokens=self._max_tokens,
            default_max_tokens=engine.limits.max_seq_len - len(token_ids),
            logprobs=self._num_logprobs,
            prompt_logprobs=self._body.prompt_logprobs,
        )

    async def formatter(self, codec: TextCodec, _max_inline_length: int) -> "ChatFormatter":
        """Return a formatter of messages."""
        return ChatFormatter(
            codec,
            has_logprobs=self._num_logprobs is not None,
            num_prompt_logprobs=self._body.prompt_logprobs,
        )


def _max_tokens(body: ChatRequest) -> int | None:
    is_newer = body.max_completion_tokens is not None
    name, value = (
        ("max_completion_tokens", body.max_completion_tokens)
        if is_newer
        else ("max_tokens", body.max_tokens)
    )
    check_prompt_only(
        value, param=name, shows={"prompt_logprobs": body.prompt_logprobs is not None}
    )
    return value


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.use_beam_search and body.top_logprobs:
        raise ApiError(
            f"top_logprobs is {body.top_logprobs}; it must be 0 or left out with use_beam_search.",
            param="top_logprobs",
            code="invalid_value",
        )
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(
            f"top_logprobs is {body.top_logprobs}, but logprobs is not true; set it to true.",
            param="top_logprobs",
            code="invalid_value",
        )
    return None


class ChatFormatter:
    """Choices as messages, whole or in deltas."""

    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(
        self, codec: TextCodec, *, has_logprobs: bool, num_prompt_logprobs: int | None
    ) -> None:
        self._codec = codec
        self._has_logprobs = has_logprobs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._begun: set[int] = set()

    def head_fields(self) -> dict[str, Any]:
        """The tier that served the answer; there is one."""
        return {"service_tier": "default"}

    def chunk_choices(self, index: int, output: Output) -> list[dict[str, Any]]:
        """Choices of chunks, as OpenAI cuts them.

        The first of each choice has the role and no text, the last the reason and no more. Those
        between have the text of new tokens, which may be none.
        """
        choices: list[dict[str, Any]] = []
        if index not in self._begun:
            self._begun.add(index)
            choices.append(_delta(index, {"role": "assistant", "content": "", "refusal": None}))
        if output.token_ids:
            has_logprobs = self._has_logprobs and bool(output.logprobs)
            logprobs = chat_logprobs(self._codec, output.logprobs) if has_logprobs else None
            choices.append(_delta(index, {"content": output.text}, logprobs=logprobs))
        if output.finish_reason is not None:
            choices.append(_delta(index, {}, finish_reason=output.finish_reason))
        return choices

    def full_choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        """A choice of a whole answer."""
        logprobs = chat_logprobs(self._codec, choice.logprobs) if self._has_logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }

    def answer_members(self, logprobs: PromptLogprobs | None) -> dict[str, Any]:
        """Log-probabilities of the conversation, where vLLM has them."""
        num_top = self._num_prompt_logprobs
        if num_top is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._codec, logprobs, num_top)}


def _delta(
    index: int,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish_reason: FinishReason | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
