"""Fakes for tests of the HTTP layer: an engine with predictable answers, a caller that can hang up.

They ship with the package, for tests of what is built on it. Nothing here reads a clock.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import inf
from types import MappingProxyType
from typing import Any, Final

import httpx
from fastapi import FastAPI
from starlette.types import ASGIApp, Message

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.engine_client import EngineLimits, RequestTimeline
from tandem_engine.api.errors import EngineStopped, InvalidParameter, PromptTooLong
from tandem_engine.api.output import (
    EngineStats,
    FinishReason,
    Output,
    PromptLogprobs,
    TokenLogprob,
)
from tandem_engine.api.request import LOWEST_PRIORITY, SamplingParams
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_engine.api.slo import Slo
from tandem_engine.api.steps import MAX_KEPT_STEPS, StepExplanation
from tandem_engine.api.timeline import Timeline
from tandem_serve.fake_timeline import FAKE_TIMELINE
from tandem_serve.http.app import build_app
from tandem_serve.http.settings import Dependencies, HttpSettings

NUM_BYTES: Final = 256
BEGIN: Final = 256
"""Token that stands before every text."""
END: Final = 257
"""Token that ends an answer."""
VOCAB_SIZE: Final = 258
SPECIAL_TEXTS: Final = {BEGIN: "<begin>", END: "<end>"}

LIMITS: Final = EngineLimits(
    max_seq_len=128,
    max_input_token_len=100,
    vocab_size=VOCAB_SIZE,
    cache_block_size=16,
    num_kv_blocks=64,
    max_sequences=8,
    max_batch_size=200,
)


class FakeCodec:
    """One token a byte; `<begin>` before a text, `role:content;` for a message."""

    max_token_chars = 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The bytes of `text`, after `<begin>` with special tokens."""
        return [BEGIN] * add_special_tokens + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the bytes, special tokens in angle brackets unless they are skipped."""
        shown = (i for i in token_ids if i < NUM_BYTES or not skip_special_tokens)
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        """One token as text."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The byte, or the name of a special token."""
        if token_id < NUM_BYTES:
            return bytes([token_id])
        return SPECIAL_TEXTS[token_id].encode()

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        """`<begin>role:content;…` and, before an answer, `assistant:`; or without the last `;`.

        Raises:
            InvalidParameter: template_kwargs has `refuse`, whose value is the sentence.
        """
        if template_kwargs and "refuse" in template_kwargs:
            raise InvalidParameter(str(template_kwargs["refuse"]), parameter="messages")
        text = "".join(f"{message['role']}:{message['content']};" for message in messages)
        text = text.removesuffix(";") if continue_final_message else text
        return self.encode(text + "assistant:" * add_generation_prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Arguments of one `FakeEngine.submit`."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int
    cache_salt: str
    timeout_s: float = inf
    is_traced: bool = False


class FakeEngine:
    """An engine that answers with the prompt's bytes in reverse, then `<end>`; one byte an output.

    All choices of a request say the same, choice 0 first at every token. The log-probability of
    each token, of the prompt as well, is -0.5, those of the likeliest are -0.5, -1.5, … for the
    token and the ids above.
    """

    def __init__(
        self,
        *,
        limits: EngineLimits = LIMITS,
        pauses_after: int | None = None,
        fails_after: int | None = None,
        failure: Exception | None = None,
        max_requests: int | None = None,
        max_n: int = 128,
        num_cached_tokens: int = 0,
        sampling_defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - frozen
    ) -> None:
        """Make an engine.

        Args:
            limits: limits of the engine.
            pauses_after: outputs of each request before it sets `paused` and waits for `resume`.
            fails_after: outputs of each request before `failure` is raised.
            failure: the exception raised then.
            max_requests: requests that it takes before it stops.
            max_n: sequences of a request at most.
            num_cached_tokens: tokens of each prompt that its cache has.
            sampling_defaults: parameters where a request is silent.
        """
        self.sampling_defaults = sampling_defaults
        self._limits = limits
        self._pauses_after = pauses_after
        self._fails_after = fails_after
        self._failure = failure
        self._max_requests = max_requests
        self._max_n = max_n
        self.num_cached_tokens = num_cached_tokens
        self._stopped_because: str | None = None
        self.codec = FakeCodec()
        self.submitted: list[Submitted] = []
        self.reconfigured: list[tuple[ScheduleConfig, Slo]] = []
        """Arguments of each `reconfigure`."""
        self.kept_steps: list[StepExplanation] = []
        """Steps that `steps` returns."""
        self.shown_timeline = FAKE_TIMELINE
        """The timeline whose first steps `timeline` returns."""
        self.recorded: list[tuple[int, float]] = []
        """Arguments of each `timeline`."""
        self.num_recording = 0
        self.may_record = asyncio.Event()
        """Unset: a recording goes on."""
        self.may_record.set()
        self.aborted: list[str] = []
        """Ids of requests that were aborted before their end."""
        self.num_paused = 0
        self.paused = asyncio.Event()
        self.resume = asyncio.Event()

    @property
    def limits(self) -> EngineLimits:
        """Limits of the engine."""
        return self._limits

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = LOWEST_PRIORITY,
        cache_salt: str = "",
        timeout_s: float = inf,
        is_traced: bool = False,
    ) -> "FakeStream":
        """Answer a prompt.

        Raises:
            PromptTooLong: it leaves no room for a token.
            InvalidParameter: it asks for more sequences than `max_n`.
            EngineStopped: `stop_because` or `stop` was called.
        """
        self.check_health()
        if len(self.submitted) == self._max_requests:
            raise EngineStopped("The engine accepts no more requests.")
        if len(prompt_token_ids) >= self._limits.max_seq_len:
            raise PromptTooLong(f"{len(prompt_token_ids)} tokens are too many.", parameter="prompt")
        self._check_width(sampling)
        submitted = Submitted(
            request_id=request_id,
            prompt_token_ids=tuple(prompt_token_ids),
            sampling=sampling,
            priority=priority,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
            is_traced=is_traced,
        )
        self.submitted.append(submitted)
        return FakeStream(self, submitted)

    async def reconfigure(self, schedule: ScheduleConfig, slo: Slo) -> None:
        """Record the arguments; there is nothing to schedule."""
        self.reconfigured.append((schedule, slo))

    def stats(self) -> EngineStats:
        """An idle engine's."""
        return EngineStats(
            num_running=0,
            num_waiting=0,
            num_kv_blocks=self._limits.num_kv_blocks,
            num_free_kv_blocks=self._limits.num_kv_blocks,
            num_preemptions=0,
        )

    def steps(
        self, since: int = 0, limit: int = MAX_KEPT_STEPS, *, with_decodes: bool = True
    ) -> Sequence[StepExplanation]:
        """The newest of `kept_steps`."""
        steps = [step for step in self.kept_steps if step.number >= since][-limit:]
        return steps if with_decodes else [_without_decodes(step) for step in steps]

    async def timeline(self, num_steps: int, *, within_s: float) -> Timeline:
        """The first steps of `shown_timeline`, once `may_record` is set.

        Raises:
            EngineStopped: `stop_because` or `stop` was called.
        """
        self.check_health()
        self.recorded.append((num_steps, within_s))
        self.num_recording += 1
        try:
            await self.may_record.wait()
        finally:
            self.num_recording -= 1
        steps = self.shown_timeline.steps
        return Timeline(steps=tuple(step for step in steps if step.number < num_steps))

    def metrics(self) -> bytes:
        """One line in Prometheus' text format."""
        return f"fake_requests_total {len(self.submitted)}\n".encode()

    def check_health(self) -> None:
        """Raise EngineStopped once it was stopped."""
        if self._stopped_because is not None:
            raise EngineStopped(self._stopped_because)

    def stop_because(self, cause: str) -> None:
        """Accept no more requests; `cause` is the message for callers."""
        self._stopped_because = cause

    async def stop(self) -> None:
        """Take no more requests."""
        self.stop_because("The engine was stopped.")

    def _check_width(self, sampling: SamplingParams) -> None:
        if sampling.num_sequences > self._max_n:
            name = "n" if sampling.best_of is None else "best_of"
            raise InvalidParameter(
                f"{name} is {sampling.num_sequences}; it must be in [1, {self._max_n}], "
                "the maxN of this service.",
                parameter=name,
            )

    async def before_output(self, num_done: int) -> None:
        """Pause, or fail, or both, after as many outputs as the constructor was given."""
        if num_done == self._pauses_after:
            self.num_paused += 1
            self.paused.set()
            await self.resume.wait()
        if num_done == self._fails_after and self._failure is not None:
            raise self._failure


def _without_decodes(step: StepExplanation) -> StepExplanation:
    return replace(step, rows=tuple(row for row in step.rows if row.kind != "decode"))


class FakeStream:
    """The outputs of one request to a `FakeEngine`."""

    def __init__(self, engine: FakeEngine, submitted: Submitted) -> None:
        self._engine = engine
        self._submitted = submitted
        self._has_ended = False
        self.timelines: Sequence[RequestTimeline] = ()
        """Nothing is computed, so there are no moments; a test may set some."""
        self.num_cached_tokens = engine.num_cached_tokens

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Give out the answer, token by token."""
        for num_done, output in enumerate(self._outputs()):
            await self._engine.before_output(num_done)
            yield output
        self._has_ended = True

    def abort(self) -> None:
        """Record the id of the request, unless it has ended."""
        if not self._has_ended:
            self._engine.aborted.append(self._submitted.request_id)

    def _outputs(self) -> Iterator[Output]:
        sampling = self._submitted.sampling
        room = self._engine.limits.max_seq_len - len(self._submitted.prompt_token_ids)
        num_tokens = min(sampling.max_tokens, room)
        prompt_logprobs = _prompt_logprobs(self._submitted)
        if not num_tokens:
            for index in range(sampling.n):
                yield Output(
                    index=index,
                    text="",
                    token_ids=(),
                    finish_reason="length",
                    prompt_logprobs=prompt_logprobs,
                )
        tokens = list(islice(_reversed_then_end(self._submitted), num_tokens))
        texts, is_stopped = _texts(tokens, sampling.stop)
        tokens = tokens[: len(texts)]
        for i, (token, text) in enumerate(zip(tokens, texts, strict=True)):
            is_last = i == len(tokens) - 1
            ending: FinishReason = "stop" if is_stopped or token == END else "length"
            for index in range(sampling.n):
                yield Output(
                    index=index,
                    text=text,
                    token_ids=(token,),
                    logprobs=_logprobs(token, sampling.logprobs),
                    finish_reason=ending if is_last else None,
                    prompt_logprobs=None if i else prompt_logprobs,
                )


def _reversed_then_end(submitted: Submitted) -> Iterator[int]:
    prompt = [token for token in submitted.prompt_token_ids if token < NUM_BYTES]
    yield from reversed(prompt)
    if not submitted.sampling.ignore_eos:
        yield END
        return
    while prompt:
        yield from reversed(prompt)


def _prompt_logprobs(submitted: Submitted) -> PromptLogprobs | None:
    count, token_ids = submitted.sampling.prompt_logprobs, submitted.prompt_token_ids[1:]
    if count is None or not token_ids:
        return None
    likeliest = [pair for token in token_ids for pair in _logprobs(token, count)[0].top]
    return PromptLogprobs(
        token_ids=token_ids,
        logprobs=[-0.5] * len(token_ids),
        ranks=[1] * len(token_ids),
        num_top=count,
        top_ids=[token_id for token_id, _ in likeliest],
        top_logprobs=[logprob for _, logprob in likeliest],
    )


def _texts(tokens: Sequence[int], stop: Sequence[str]) -> tuple[list[str], bool]:
    """The text that each token adds, up to a stop string, and True if one came.

    Like a real engine, it holds back what may be the beginning of a stop string.
    """
    texts: list[str] = []
    seen = ""
    num_sent = 0
    for i, token in enumerate(tokens):
        seen += chr(token) if token < NUM_BYTES else ""
        cuts = [seen.find(word) for word in stop if word in seen]
        is_last = i == len(tokens) - 1 or token == END
        num_ready = min(cuts) if cuts else len(seen) - (0 if is_last else _num_held(seen, stop))
        texts.append(seen[num_sent:num_ready])
        num_sent = num_ready
        if cuts:
            return texts, True
    return texts, False


def _num_held(seen: str, stop: Sequence[str]) -> int:
    """Characters at the end of `seen` that may begin a stop string."""
    lengths = range(max(map(len, stop), default=0), 0, -1)
    return next(
        (n for n in lengths if any(seen[-n:] == word[:n] for word in stop if n < len(word))), 0
    )


def _logprobs(token: int, num_top: int | None) -> tuple[TokenLogprob, ...]:
    if num_top is None:
        return ()
    top = tuple(((token + i) % VOCAB_SIZE, -0.5 - i) for i in range(num_top))
    return (TokenLogprob(token, -0.5, top),)


def fake_app(
    engine: FakeEngine | None, *, monotonic_s: Callable[[], float] = float, **settings: Any
) -> FastAPI:
    """The HTTP application over `engine` for the model `tiny`; clocks stand still, ids count.

    A stream's head waits for its first event, and nothing breaks a silence.

    Args:
        engine: the engine, or None for one that is still starting.
        monotonic_s: the clock that the rate of completions is taken with.
        settings: settings of the HTTP layer that are not to have their defaults.
    """
    numbers = count(1)
    named: dict[str, Any] = {
        "model_name": "tiny",
        "created_s": 1_700_000_000,
        "head_after_s": inf,
        "comment_after_s": inf,
    } | settings
    dependencies = Dependencies(
        unix_time_s=lambda: 1_800_000_000.0,
        monotonic_s=monotonic_s,
        new_id=lambda: f"{next(numbers):032x}",
    )
    return build_app(HttpSettings(**named), lambda: engine, dependencies=dependencies)


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    """A client that talks to `app` in the same process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


class Caller:
    """An HTTP caller in the same process that sees each event as it comes and may hang up.

    httpx's own transport gives a response only when it is complete.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: object,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self._pieces = [json.dumps(body).encode()]
        self._is_gone = asyncio.Event()
        self._num_left: int | None = None
        self.received: asyncio.Queue[Message] = asyncio.Queue()

    async def call(self) -> None:
        """Serve the request to its end; what is sent goes to `received`."""
        await self._app(self._scope, self._receive, self._send)

    def break_after(self, num_messages: int) -> None:
        """Let the connection break when so many messages have been sent."""
        self._num_left = num_messages

    def hang_up(self) -> None:
        """Disconnect; the rest of the body never arrives."""
        self._pieces.clear()
        self._is_gone.set()

    async def _send(self, message: Message) -> None:
        if self._num_left == 0:
            raise OSError("The connection is broken.")
        if self._num_left is not None:
            self._num_left -= 1
        await self.received.put(message)

    async def _receive(self) -> Message:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(), "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}
