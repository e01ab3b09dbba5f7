"""One choice of a request on the engine's thread: its text so far and its timeline."""

from collections.abc import Sequence

from tandem_engine.api.output import (
    FinishReason,
    Output,
    PromptLogprobs,
    TokenLogprob,
    join_prompt_logprobs,
)
from tandem_engine.api.request import Request
from tandem_engine.api.step import Advance, SampledToken
from tandem_engine.async_engine.stream import RequestStream
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.text.codec import CheckpointCodec
from tandem_engine.text.detokenizer import Detokenizer
from tandem_engine.text.stop_strings import StopStrings, automaton_of


class Choice:
    """Turns the tokens of one sequence into outputs for its stream.

    Args:
        request: The request of the sequence.
        index: Number of the choice in its request, and of its sequence.
        stream: Takes the outputs.
        text: Decodes its tokens.
        stops: Finds the request's stop strings in its text.
        prompt_logprobs: Parts of the prompt's log-probabilities so far; one list for all choices.
    """

    def __init__(
        self,
        request: Request,
        *,
        index: int,
        stream: RequestStream,
        text: Detokenizer,
        stops: StopStrings,
        prompt_logprobs: list[PromptLogprobs],
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.sequence_id = request.sequences[index]
        """The sequence that it shows."""
        self.index = index
        self.stream = stream
        self.timeline = Timeline(request.arrived, priority=request.priority)
        self._text = text
        self._stops = stops
        self._num_tokens = 0
        self._min_tokens = sampling.min_tokens
        # Beams are compared by log-probabilities, which the request may not have asked for.
        self._shows_logprobs = sampling.logprobs is not None
        self.prompt_logprobs = prompt_logprobs
        """Those so far; the choice's first output has all of them."""
        self._shows_prompt = sampling.prompt_logprobs is not None
        self._is_prompt_only = not sampling.max_tokens
        self._is_simple = not (
            sampling.stop or self._shows_logprobs or self._shows_prompt or self._is_prompt_only
        )

    def output(self, advance: Advance) -> Output:
        """Turn new tokens into an output; a stop string may end the choice at any of them."""
        if advance.finish_reason is None and self._is_simple and len(advance.tokens) == 1:
            token_id = advance.tokens[0].token_id
            return Output(index=self.index, text=self._text.push(token_id), token_ids=(token_id,))
        if self._is_prompt_only:
            # The token behind the prompt was sampled for nothing but to end it.
            return self._output("", [], "length")
        text, shown, met = "", list[SampledToken](), False
        for number, token in enumerate(advance.tokens, 1):
            is_last = number == len(advance.tokens)
            piece, met = self._push(token.token_id, advance.finish_reason if is_last else None)
            text += piece
            shown.append(token)
            if met:
                break
        return self._output(text, shown, "stop" if met else advance.finish_reason)

    def _output(
        self, text: str, shown: Sequence[SampledToken], reason: FinishReason | None
    ) -> Output:
        return Output(
            index=self.index,
            text=text,
            token_ids=tuple(token.token_id for token in shown),
            logprobs=self._logprobs(shown),
            finish_reason=reason,
            prompt_logprobs=self._take_prompt_logprobs(),
        )

    def _take_prompt_logprobs(self) -> PromptLogprobs | None:
        """Those of the prompt, once."""
        if not self._shows_prompt:
            return None
        self._shows_prompt = False
        parts = self.prompt_logprobs
        if len(parts) > 1:
            # Joined once for all choices.
            parts[:] = [join_prompt_logprobs(parts)]
        return parts[0] if parts else None

    def _push(self, token_id: int, reason: FinishReason | None) -> tuple[str, bool]:
        """Text that a token adds, and whether a stop string was met."""
        self._num_tokens += 1
        # The token that ended it is not part of the text, only of the count.
        piece = "" if reason == "stop" else self._text.push(token_id)
        text, met = self._find(piece)
        return self._rest(text) if reason is not None and not met else (text, met)

    def _rest(self, text: str) -> tuple[str, bool]:
        """The text with all that was held back: the output ends here."""
        more, met = self._find(self._text.flush())
        return text + more + ("" if met else self._stops.flush()), met

    def _find(self, piece: str) -> tuple[str, bool]:
        """Return the text that may be shown after a piece, and whether a stop string was met."""
        # As in vLLM: one that ends within the first min_tokens tokens is text like any other.
        return self._stops.push(piece, may_end=self._num_tokens > self._min_tokens)

    def _logprobs(self, tokens: Sequence[SampledToken]) -> tuple[TokenLogprob, ...]:
        if not self._shows_logprobs:
            return ()
        return tuple(token.logprob for token in tokens if token.logprob is not None)


def choices_of(
    request: Request, *, count: int, stream: RequestStream, codec: CheckpointCodec
) -> list[Choice]:
    """The first `count` choices of a request, which share what they know of prompt and stops."""
    sampling = request.sampling
    context = codec.context(
        request.prompt_token_ids, skip_special_tokens=sampling.skip_special_tokens
    )
    automaton = automaton_of(sampling.stop)
    prompt_logprobs: list[PromptLogprobs] = []
    return [
        Choice(
            request,
            index=index,
            stream=stream,
            text=context.detokenizer(),
            stops=StopStrings(automaton),
            prompt_logprobs=prompt_logprobs,
        )
        for index in range(count)
    ]
