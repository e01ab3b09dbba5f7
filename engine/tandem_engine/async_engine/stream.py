"""Streams of outputs on the event loop's side."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from tandem_engine.api.output import Output
from tandem_engine.async_engine.timeline import Timeline


class RequestStream:
    """The outputs of all choices of one request; implements `OutputStream`.

    Fed from the event loop (never from another thread), read by one consumer.
    """

    def __init__(self, num_choices: int, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._open = num_choices
        self._outputs: list[Output] = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self.timelines: Sequence[Timeline] = ()
        """The moments of each choice of a traced request; empty: it is not traced."""
        self.num_cached_tokens = 0
        """Tokens of the prompt that the prefix cache had. The engine's thread sets it before it
        delivers the first output."""

    def trace(self, timelines: Sequence[Timeline]) -> None:
        """Have the moments of the request's choices noted; before the engine has the request."""
        for timeline in timelines:
            timeline.chunks = []
        self.timelines = timelines

    @property
    def is_over(self) -> bool:
        """True when no further output comes."""
        return self._open <= 0 or self._error is not None

    def feed(self, output: Output) -> None:
        """Add an output; ignored after the end."""
        if self.is_over:
            return
        self._outputs.append(output)
        if output.finish_reason is not None:
            self._open -= 1
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, and the other choices with it."""
        if self.is_over:
            return
        self.abort()
        self._error = error

    def abort(self) -> None:
        """Give everything back that the request holds; harmless when it has ended."""
        if not self.is_over:
            self._open = 0
            self._abort()
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while not self._outputs:
            if self._error is not None:
                raise self._error
            if self._open <= 0:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._next_merged()

    def _next_merged(self) -> Output:
        """The oldest output, with all that has come for the same choice since.

        A reader that fell behind catches up with one message instead of many.
        """
        index = self._outputs[0].index
        own = [output for output in self._outputs if output.index == index]
        self._outputs = [output for output in self._outputs if output.index != index]
        return merge(own)


class BestOfStream:
    """Waits for all choices and hands out the n likeliest, by mean log-probability."""

    def __init__(self, stream: RequestStream, *, num_best: int, with_logprobs: bool) -> None:
        self._stream = stream
        self._num_best = num_best
        self._with_logprobs = with_logprobs
        self._best: list[Output] | None = None

    @property
    def timelines(self) -> Sequence[Timeline]:
        """The moments of each choice of a traced request; empty: it is not traced."""
        return self._stream.timelines

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that the prefix cache had."""
        return self._stream.num_cached_tokens

    def abort(self) -> None:
        """Give everything back that the request holds."""
        self._stream.abort()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if self._best is None:
            self._best = self._ranked([output async for output in self._stream])
        if not self._best:
            raise StopAsyncIteration
        return self._best.pop(0)

    def _ranked(self, outputs: Sequence[Output]) -> list[Output]:
        by_choice: dict[int, list[Output]] = {}
        for output in outputs:
            by_choice.setdefault(output.index, []).append(output)
        whole = sorted((merge(parts) for parts in by_choice.values()), key=_mean_logprob)
        best = whole[::-1][: self._num_best]
        return [
            replace(output, index=index, logprobs=output.logprobs if self._with_logprobs else ())
            for index, output in enumerate(best)
        ]


def merge(outputs: Sequence[Output]) -> Output:
    """Several outputs of one choice, in order, as one."""
    if len(outputs) == 1:
        return outputs[0]
    return replace(
        outputs[-1],
        text="".join(output.text for output in outputs),
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        logprobs=tuple(entry for output in outputs for entry in output.logprobs),
        prompt_logprobs=outputs[0].prompt_logprobs,
    )


def _mean_logprob(output: Output) -> float:
    total = sum(entry.logprob for entry in output.logprobs)
    return total / max(1, len(output.logprobs))
