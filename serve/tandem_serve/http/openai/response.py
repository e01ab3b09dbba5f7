"""Turns the engine's outputs into a response, whole or as events.

Chat and completions differ in the form of their choices only.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from fastapi import Response
from pydantic_core import to_json

from tandem_engine.api.output import FinishReason, Output, PromptLogprobs, TokenLogprob
from tandem_serve.http.offload import TEXT_POOL
from tandem_serve.http.openai.generation import Generation, Usage
from tandem_serve.http.openai.streaming import DONE, Envelope

_MAX_INLINE: Final = 256
"""Choices and log-probabilities that are written on the event loop: a millisecond."""


@dataclass(slots=True, kw_only=True)
class CollectedChoice:
    """Output of one choice so far."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | None = None

    def add(self, output: Output) -> None:
        """Append the output of a step."""
        self.texts.append(output.text)
        self.logprobs += output.logprobs
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        self.finish_reason = output.finish_reason or self.finish_reason


class ChoiceFormatter(Protocol):
    """Writes the choices of an endpoint. One object writes one answer, whole or in chunks."""

    @property
    def object_name(self) -> str:
        """The `object` of a whole answer."""

    @property
    def chunk_object_name(self) -> str:
        """The `object` of a chunk."""

    def head_fields(self) -> dict[str, Any]:
        """Fields of each chunk and of the whole answer, beside those that both endpoints have."""

    def chunk_choices(self, index: int, output: Output) -> list[dict[str, Any]]:
        """What one output adds: a choice of each of the chunks that it makes."""

    def full_choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        """A choice of a whole answer."""

    def answer_members(self, prompt_logprobs: PromptLogprobs | None) -> dict[str, Any]:
        """Members beside the choices, in a whole answer or in the first chunk of a stream.

        Args:
            prompt_logprobs: Of the first prompt; None: they are not asked for, or it has one token.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResponse:
    """The answer to one call."""

    generation: Generation
    formatter: ChoiceFormatter
    choices_per_prompt: int
    answer_id: str
    created_s: int
    model: str

    async def events(
        self, *, includes_usage: bool, has_continuous_usage: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, one for each output, tokens without text among them.

        As in vLLM: clients take the first one for the first token, and count the gaps.

        Args:
            includes_usage: One more chunk has the usage.
            has_continuous_usage: The others have the usage so far.
        """
        envelope = Envelope(
            self._head(self.formatter.chunk_object_name), includes_usage=includes_usage
        )
        async with aclosing(self.generation.outputs()) as outputs:
            async for prompt, output in outputs:
                index = self._index(prompt, output)
                usage = self.generation.usage() if has_continuous_usage else None
                yield await TEXT_POOL.run(
                    _is_long(output.prompt_logprobs), self._chunks, envelope, index, output, usage
                )
        if includes_usage:
            yield envelope.usage(self.generation.usage())
        yield DONE

    async def whole(self) -> Response:
        """The whole answer, when its last token has come."""
        choices: defaultdict[int, CollectedChoice] = defaultdict(CollectedChoice)
        async with aclosing(self.generation.outputs()) as outputs:
            async for prompt, output in outputs:
                choices[self._index(prompt, output)].add(output)
        is_long = _are_long(choices.values())
        document = await TEXT_POOL.run(is_long, self._document, choices)
        return Response(document, media_type="application/json")

    def _chunks(self, envelope: Envelope, index: int, output: Output, usage: Usage | None) -> bytes:
        is_first = not envelope.is_begun
        members = self.formatter.answer_members(output.prompt_logprobs) if is_first else {}
        first, *others = self.formatter.chunk_choices(index, output)
        chunks = [envelope.chunk(choice, usage) for choice in others]
        return b"".join([envelope.chunk(first, usage, members), *chunks])

    def _document(self, choices: Mapping[int, CollectedChoice]) -> bytes:
        document = self._head(self.formatter.object_name) | {
            "choices": [
                self.formatter.full_choice(index, choices[index]) for index in sorted(choices)
            ],
            "usage": self.generation.usage(),
            **self.formatter.answer_members(choices[0].prompt_logprobs),
        }
        return to_json(document)

    def _index(self, prompt: int, output: Output) -> int:
        return prompt * self.choices_per_prompt + output.index

    def _head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": object_name,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": None,
            **self.formatter.head_fields(),
        }


def _are_long(choices: Collection[CollectedChoice]) -> bool:
    """True where writing all choices takes so long that streams would notice."""
    num_logprobs = sum(len(choice.logprobs) for choice in choices)
    return len(choices) + num_logprobs > _MAX_INLINE or any(
        _is_long(choice.prompt_logprobs) for choice in choices
    )


def _is_long(prompt_logprobs: PromptLogprobs | None) -> bool:
    """True where writing an answer takes so long that streams would notice."""
    if prompt_logprobs is None:
        return False
    return len(prompt_logprobs) * (1 + prompt_logprobs.num_top) > _MAX_INLINE
