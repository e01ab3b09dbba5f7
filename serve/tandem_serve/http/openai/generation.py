"""One call's requests to the engine: submitted, read and aborted together."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Final, TypedDict, TypeVar

from tandem_engine.api.engine_client import EngineClient, OutputStream
from tandem_engine.api.output import Output
from tandem_engine.api.request import LOWEST_PRIORITY, SamplingParams
from tandem_serve.http.admission.deadline import Deadline
from tandem_serve.http.tracing import RequestTrace

T = TypeVar("T")

_COST_OF_TURN: Final = 16
"""Cost of the prompts that are submitted in one turn of the event loop: a millisecond."""
_TOKENS_OF_COST: Final = 1024
_STREAMS_OF_TURN: Final = 64
"""Streams whose reading begins or ends in one turn of the event loop: a millisecond."""


class PromptTokensDetails(TypedDict):
    """OpenAI's parts of the tokens of prompts."""

    cached_tokens: int
    """Those that the prefix cache had."""


class Usage(TypedDict):
    """OpenAI's count of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequests:
    """The prompts of one call, and how to continue each of them."""

    prompts: Sequence[Sequence[int]]
    """The token ids of each."""
    sampling: SamplingParams
    priority: int = LOWEST_PRIORITY
    """1 is the highest, 5 the lowest."""
    cache_salt: str = ""
    """Requests of different salts share no computed prefixes."""

    def cost(self, prompt: Sequence[int]) -> int:
        """Cost of submitting a prompt, as a multiple of that of a short one with one choice."""
        return self.sampling.num_sequences + len(prompt) // _TOKENS_OF_COST

    def submit(
        self,
        engine: EngineClient,
        prompt: Sequence[int],
        request_id: str,
        *,
        timeout_s: float,
        is_traced: bool,
    ) -> OutputStream:
        """Queue a prompt; see `EngineClient.submit`."""
        return engine.submit(
            request_id,
            prompt,
            self.sampling,
            priority=self.priority,
            cache_salt=self.cache_salt,
            timeout_s=timeout_s,
            is_traced=is_traced,
        )


class Generation:
    """The output streams of one call, one a prompt, and the count of their tokens."""

    def __init__(
        self,
        engine: EngineClient,
        id_prefix: str,
        deadline: Deadline,
        *,
        trace: RequestTrace | None = None,
    ) -> None:
        self._engine = engine
        self._id_prefix = id_prefix
        self._deadline = deadline
        self._trace = trace
        self._num_prompt_tokens = 0
        self._num_completion_tokens = 0
        self._streams: list[OutputStream] = []

    async def submit(self, requests: EngineRequests, held: ExitStack) -> None:
        """Submit all of `requests`; `held` aborts them when it closes.

        Many are submitted in pieces, and other tasks of the event loop have a turn between two.

        Raises:
            DeadlineExceeded: no time is left for them.
            RequestError: one cannot be served; the caller's `held` aborts those before it.
            EngineStopped: the engine accepts no more.
        """
        cost = 0
        for prompt in requests.prompts:
            if cost >= _COST_OF_TURN:
                await asyncio.sleep(0)
                cost = 0
            self._submit(requests, prompt, held)
            cost += requests.cost(prompt)

    def _submit(self, requests: EngineRequests, prompt: Sequence[int], held: ExitStack) -> None:
        stream = requests.submit(
            self._engine,
            prompt,
            f"{self._id_prefix}-{len(self._streams)}",
            timeout_s=self._deadline.left_s(),
            is_traced=self._trace is not None,
        )
        held.callback(stream.abort)
        if self._trace is not None:
            self._trace.add(len(prompt), stream.timelines)
        self._streams.append(stream)
        self._num_prompt_tokens += len(prompt)

    async def outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """(number of the prompt, output) as they come, the prompts interleaved.

        Raises:
            RequestFailed: a request failed.
            DeadlineExceeded: a request exceeded its deadline.
            EngineStopped: the engine stopped before the end.
        """
        try:
            async with aclosing(_interleaved(self._streams)) as outputs:
                async for prompt, output in outputs:
                    self._num_completion_tokens += len(output.token_ids)
                    yield prompt, output
        except Exception as error:
            if self._trace is not None:
                self._trace.fail(error)
            raise
        if self._trace is not None:
            self._trace.succeed()

    def usage(self) -> Usage:
        """The tokens so far. A prompt counts once, however many choices it has."""
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            total_tokens=self._num_prompt_tokens + self._num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(stream.num_cached_tokens for stream in self._streams)
            ),
        )


async def _interleaved(
    streams: Sequence[OutputStream],
) -> AsyncGenerator[tuple[int, Output], None]:
    if len(streams) == 1:  # Nearly always; no tasks and no queue then.
        async for output in streams[0]:
            yield 0, output
        return
    # One entry a stream: a slow reader delays the streams, and the engine joins their outputs.
    arrivals: asyncio.Queue[tuple[int, Output] | _StreamEnd] = asyncio.Queue(maxsize=len(streams))
    pumps: list[asyncio.Task[None]] = []
    try:
        for piece in _pieces(range(len(streams))):
            pumps += [asyncio.create_task(_pump(i, streams[i], arrivals)) for i in piece]
            await asyncio.sleep(0)
        num_open = len(streams)
        while num_open:
            arrived = await arrivals.get()
            if isinstance(arrived, _StreamEnd):
                arrived.raise_cause()
                num_open -= 1
            else:
                yield arrived
    finally:
        for ending in _pieces(pumps):
            for pump in ending:
                pump.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


def _pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _STREAMS_OF_TURN):
        yield items[start : start + _STREAMS_OF_TURN]


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    cause: Exception | None

    def raise_cause(self) -> None:
        if self.cause is not None:
            raise self.cause


async def _pump(
    prompt: int, stream: OutputStream, arrivals: asyncio.Queue[tuple[int, Output] | _StreamEnd]
) -> None:
    try:
        async for output in stream:
            await arrivals.put((prompt, output))
    except Exception as error:  # noqa: BLE001 - raised again where the streams are read
        await arrivals.put(_StreamEnd(error))
    else:
        await arrivals.put(_StreamEnd(None))
