"""Spans of OpenTelemetry: one a call, and below it one each for queue, prefill and decode.

Names and attributes are those of OpenTelemetry's conventions for generative AI, and vLLM's for
latencies. No text of a request is in them.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from tandem_engine.api.engine_client import RequestTimeline
from tandem_engine.api.errors import EngineError
from tandem_serve.api.observability import TracingSettings
from tandem_serve.http.errors import ApiError, ClientDisconnected, from_exception

TRACES_PATH: Final = "/v1/traces"
MAX_CHILDREN: Final = 96
"""Spans below that of one call, which may have thousands of choices."""

_LOGGER: Final = logging.getLogger(__name__)
_CONTEXT_HEADERS: Final = ("traceparent", "tracestate")
_SEND_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 5.0
_NANOSECONDS: Final = 1e9


class OtelTracer:
    """Makes spans and sends them in batches, on a thread of its own.

    Spans that come faster than they are sent are dropped: 2,048 wait at most, as OpenTelemetry has
    it (OTEL_BSP_MAX_QUEUE_SIZE).
    """

    def __init__(self, settings: TracingSettings, processor: SpanProcessor) -> None:
        self._model_name = settings.model_name
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=Resource.create(_resource(settings)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tandem")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def sending(cls, settings: TracingSettings) -> Self:
        """Return a tracer that sends spans to the receiver of `settings`."""
        exporter = OTLPSpanExporter(
            endpoint=settings.endpoint.rstrip("/") + TRACES_PATH, timeout=_SEND_TIMEOUT_S
        )
        return cls(settings, BatchSpanProcessor(exporter))

    def begin(self, operation: str, headers: Headers, request_id: str) -> "OtelTrace | None":
        """Return the trace of a call that begins now; None: it is not sampled."""
        given = {name: headers[name] for name in _CONTEXT_HEADERS if name in headers}
        parent = self._propagator.extract(given, context=Context())
        span = self._tracer.start_span(
            f"{operation} {self._model_name}", context=parent, kind=SpanKind.SERVER
        )
        if not span.is_recording():
            return None
        span.set_attributes(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "tandem",
                "gen_ai.request.model": self._model_name,
                "gen_ai.request.id": request_id,
            }
        )
        return OtelTrace(self._tracer, span)

    def close(self) -> None:
        """Send what is queued, for some seconds; blocks."""
        # The SDK waits for half a minute where the receiver does not answer.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)


def _resource(settings: TracingSettings) -> dict[str, str]:
    attributes = {
        "service.name": settings.service_name,
        "service.namespace": settings.service_namespace,
        # In a pod, its name: the replica.
        "service.instance.id": os.environ.get("HOSTNAME"),
    }
    return {name: value for name, value in attributes.items() if value}


@dataclass(slots=True)
class OtelTrace:
    """The span of one call, and what its children are made of when it ends."""

    tracer: Tracer
    span: Span
    _num_prompt_tokens: int = 0
    _prompts: list[Sequence[RequestTimeline]] = field(default_factory=list)
    _has_succeeded: bool = False
    _error: BaseException | None = None

    def add(self, num_prompt_tokens: int, timelines: Sequence[RequestTimeline]) -> None:
        """Add a prompt and the timelines of its choices, which are read at the end."""
        self._num_prompt_tokens += num_prompt_tokens
        self._prompts.append(timelines)

    def succeed(self) -> None:
        """Note that every output was given out."""
        self._has_succeeded = True

    def fail(self, error: BaseException) -> None:
        """Note the error that the call ends with; the first one counts."""
        if self._error is None:
            self._error = error

    def end(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
        /,
    ) -> None:
        """Make the spans, and queue them to be sent; it is called as `__exit__`."""
        if error is not None:
            self.fail(error)
        if self._error is None and not self._has_succeeded:
            self._error = ClientDisconnected()
        try:
            self._describe()
            self._make_children()
            self.span.end()
        except Exception:
            # A trace is no reason to lose an answer.
            _LOGGER.exception("A trace is incomplete; this is a bug.")

    def _describe(self) -> None:
        timelines = [choice for prompt in self._prompts for choice in prompt]
        self.span.set_attribute("gen_ai.usage.input_tokens", self._num_prompt_tokens)
        self.span.set_attribute(
            "gen_ai.usage.output_tokens", sum(timeline.num_tokens for timeline in timelines)
        )
        if timelines:
            self._set_latencies(timelines[0])
        if self._error is not None:
            self._set_error(self._error)

    def _set_latencies(self, first: RequestTimeline) -> None:
        """Set vLLM's attributes, by the first choice."""
        for name, until in (
            ("gen_ai.latency.time_in_queue", first.scheduled),
            ("gen_ai.latency.time_to_first_token", first.first_token),
            ("gen_ai.latency.e2e", first.last_token),
        ):
            if until is not None:
                self.span.set_attribute(name, until - first.arrived)

    def _set_error(self, error: BaseException) -> None:
        """Set the code of an error, not its message: that may quote the request."""
        if isinstance(error, ApiError | EngineError):
            answer = from_exception(error)
            self.span.set_attribute("error.type", answer.code or type(error).__name__)
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return
        elif isinstance(error, ClientDisconnected | GeneratorExit):
            self.span.set_attribute("error.type", "client_disconnected")
            return
        else:
            self.span.set_attribute("error.type", type(error).__name__)
        self.span.set_status(StatusCode.ERROR)

    def _make_children(self) -> None:
        children = _Children(self.tracer, self.span)
        for prompt, timelines in enumerate(self._prompts):
            for choice, timeline in enumerate(timelines):
                children.add(timeline, prompt=prompt, choice=choice)
        if children.num_left_out:
            self.span.set_attribute("tandem.left_out_spans", children.num_left_out)


class _Children:
    """Makes the spans below that of a call, at its end, from times on the engine's clock."""

    def __init__(self, tracer: Tracer, parent: Span) -> None:
        self._tracer = tracer
        self._context = set_span_in_context(parent, Context())
        self._now = time.perf_counter()
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._num_made = 0
        self.num_left_out = 0

    def add(self, timeline: RequestTimeline, *, prompt: int, choice: int) -> None:
        """Make the spans of one choice; the first computes the prompt for all of them."""
        attributes = {"tandem.prompt": prompt, "tandem.choice": choice}
        if choice == 0:
            self._make("queue", timeline.arrived, timeline.scheduled, attributes)
            if timeline.scheduled is not None:
                until = timeline.first_token
                chunks = tuple(timeline.chunks or ())
                self._make("prefill", timeline.scheduled, until, attributes, chunks)
        if timeline.first_token is not None:
            attributes["gen_ai.usage.output_tokens"] = timeline.num_tokens
            self._make("decode", timeline.first_token, timeline.last_token, attributes)

    def _make(
        self,
        name: str,
        begin: float,
        end: float | None,
        attributes: dict[str, int],
        chunks: Sequence[tuple[float, int]] = (),
    ) -> None:
        """Make one span; one without an end has lasted until now."""
        if self._num_made == MAX_CHILDREN:
            self.num_left_out += 1
            return
        self._num_made += 1
        span = self._tracer.start_span(
            name, context=self._context, attributes=attributes, start_time=self._at(begin)
        )
        for at, num_tokens in chunks:
            span.add_event("chunk", {"tandem.tokens": num_tokens}, timestamp=self._at(at))
        span.end(self._at(self._now if end is None else end))

    def _at(self, seconds: float) -> int:
        """Return a time of the engine's clock in nanoseconds since 1970."""
        return int(seconds * _NANOSECONDS) + self._epoch_ns
