"""One call's requests to the engine: submitted, read and aborted together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import TypedDict

from tandem_engine.api.engine_client import EngineClient, OutputStream
from tandem_engine.api.output import Output
from tandem_engine.api.request import LOWEST_PRIORITY, SamplingParams
from tandem_serve.http.admission.deadline import Deadline
from tandem_serve.http.tracing import RequestTrace


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
class EngineRequest:
    """One prompt and how to continue it."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    priority: int = LOWEST_PRIORITY
    """1 is the highest, 5 the lowest."""
    cache_salt: str = ""
    """Requests of different salts share no computed prefixes."""

    def submit(
        self, engine: EngineClient, request_id: str, *, timeout_s: float, is_traced: bool
    ) -> OutputStream:
        """Queue it; see `EngineClient.submit`."""
        return engine.submit(
            request_id,
            self.prompt_token_ids,
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
        requests: Sequence[EngineRequest],
        id_prefix: str,
        held: ExitStack,
        deadline: Deadline,
        *,
        trace: RequestTrace | None = None,
    ) -> None:
        """Submit all of `requests`; `held` aborts them when it closes.

        Raises:
            DeadlineExceeded: no time is left for them.
            RequestError: one cannot be served; the caller's `held` aborts those before it.
            EngineStopped: the engine accepts no more.
        """
        timeout_s = deadline.left_s()
        self._num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self._num_completion_tokens = 0
        self._streams: list[OutputStream] = []
        self._trace = trace
        for i, request in enumerate(requests):
            stream = request.submit(
                engine, f"{id_prefix}-{i}", timeout_s=timeout_s, is_traced=trace is not None
            )
            held.callback(stream.abort)
            if trace is not None:
                trace.add(len(request.prompt_token_ids), stream.timelines)
            self._streams.append(stream)

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
    pumps = [asyncio.create_task(_pump(i, streams[i], arrivals)) for i in range(len(streams))]
    try:
        num_open = len(streams)
        while num_open:
            arrived = await arrivals.get()
            if isinstance(arrived, _StreamEnd):
                arrived.raise_cause()
                num_open -= 1
            else:
                yield arrived
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


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
