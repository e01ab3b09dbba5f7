"""Traces: spans of real calls, as a receiver of OTLP over HTTP gets them."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tandem_engine.api.engine_client import RequestTimeline
from tandem_engine.api.errors import RequestFailed
from tandem_engine.async_engine.timeline import Timeline
from tandem_serve import testing
from tandem_serve.api.observability import TracingSettings
from tandem_serve.http.otel import MAX_CHILDREN
from tandem_serve.testing import Caller, FakeEngine, client_of, fake_app
from tests.patience import HANG_S

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
BODY = {"model": "tiny", "prompt": "abc"}


@dataclass
class Receiver:
    """A receiver of OTLP over HTTP, on loopback."""

    server: ThreadingHTTPServer
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def span(self, name: str) -> Span:
        (found,) = (span for span in self.spans if span.name == name)
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    found = Receiver(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def settings(receiver: Receiver, sample_ratio: float = 1.0) -> TracingSettings:
    return TracingSettings(
        endpoint=f"{receiver.url}/",
        sample_ratio=sample_ratio,
        service_name="mine",
        service_namespace="team",
        model_name="tiny",
    )


def attributes(part: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, str(attribute.value.WhichOneof("value")))
        for attribute in part.attributes
    }


class TimedEngine(FakeEngine):
    """A fake engine whose streams have timelines, as the real one notes them for a trace."""

    timelines: Sequence[RequestTimeline] = (
        Timeline(10.0, 10.5, 11.0, 12.0, num_tokens=4, chunks=[(10.5, 2), (10.75, 1)]),
    )

    def submit(self, *args: Any, **kwargs: Any) -> testing.FakeStream:
        stream = super().submit(*args, **kwargs)
        stream.timelines = self.timelines if kwargs["is_traced"] else ()
        return stream


async def traced_app(engine: FakeEngine, made: TracingSettings | None) -> FastAPI:
    app = fake_app(engine)
    await app.state.http.tracing.apply(made)
    return app


async def post(app: FastAPI, body: object, **headers: str) -> int:
    async with client_of(app) as client:
        response = await client.post("/v1/completions", json=body, headers=headers)
    await app.state.http.tracing.close()
    return response.status_code


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_its_parts_below(
    receiver: Receiver, *, stream: bool
) -> None:
    app = await traced_app(TimedEngine(), settings(receiver))

    await post(app, {**BODY, "stream": stream}, **{"x-request-id": "mine-1"})

    assert set(receiver.paths) == {"/v1/traces"}
    whole = receiver.span("text_completion tiny")
    assert whole.kind == Span.SPAN_KIND_SERVER
    assert whole.status.code == Status.STATUS_CODE_UNSET
    assert attributes(whole) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tandem",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.id": "mine-1",
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.e2e": 2.0,
    }
    parts = [receiver.span(name) for name in ("queue", "prefill", "decode")]
    assert {part.parent_span_id for part in parts} == {whole.span_id}
    assert {part.trace_id for part in parts} == {whole.trace_id}
    lasted = [(part.end_time_unix_nano - part.start_time_unix_nano) / 1e9 for part in parts]
    assert lasted == pytest.approx([0.5, 0.5, 1.0])
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in pairwise(parts))
    chunks = parts[1].events
    assert [attributes(chunk)["tandem.tokens"] for chunk in chunks] == [2, 1]
    assert (chunks[1].time_unix_nano - chunks[0].time_unix_nano) / 1e9 == pytest.approx(0.25)


async def test_the_resource_is_the_service_and_its_replica(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTNAME", "pod-1")
    await post(await traced_app(TimedEngine(), settings(receiver)), BODY)

    named = attributes(receiver.requests[0].resource_spans[0].resource)
    assert named["service.name"] == "mine"
    assert named["service.namespace"] == "team"
    assert named["service.instance.id"] == "pod-1"


async def test_chat_is_called_by_its_own_word(receiver: Receiver) -> None:
    app = await traced_app(TimedEngine(), settings(receiver))
    async with client_of(app) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
        await client.post("/v1/chat/completions", json=body)
    await app.state.http.tracing.close()

    assert receiver.span("chat tiny").kind == Span.SPAN_KIND_SERVER


@pytest.mark.parametrize(("flag", "is_sent"), [("01", True), ("00", False)])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_the_context_of_the_caller_is_taken_with_its_decision(
    receiver: Receiver, flag: str, ratio: float, *, is_sent: bool
) -> None:
    engine = TimedEngine()
    app = await traced_app(engine, settings(receiver, ratio))

    await post(app, BODY, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-{flag}", tracestate="a=b")

    assert engine.submitted[0].is_traced == is_sent
    assert bool(receiver.spans) == is_sent
    if is_sent:
        whole = receiver.span("text_completion tiny")
        assert whole.trace_id.hex() == TRACE_ID
        assert whole.parent_span_id.hex() == SPAN_ID
        assert whole.trace_state == "a=b"


@pytest.mark.parametrize("given", ["", "00-1-2-01", "x" * 4000, f"00-{'0' * 32}-{SPAN_ID}-01"])
async def test_a_context_that_is_none_begins_a_trace_of_its_own(
    receiver: Receiver, given: str
) -> None:
    app = await traced_app(TimedEngine(), settings(receiver))

    assert await post(app, BODY, traceparent=given) == 200

    assert receiver.span("text_completion tiny").parent_span_id == b""


async def test_a_ratio_of_none_traces_none(receiver: Receiver) -> None:
    engine = TimedEngine()
    await post(await traced_app(engine, settings(receiver, 0.0)), BODY)

    assert receiver.spans == []
    assert not engine.submitted[0].is_traced


async def test_a_refused_request_has_its_code_and_is_no_failure_of_the_server(
    receiver: Receiver,
) -> None:
    app = await traced_app(TimedEngine(), settings(receiver))
    assert await post(app, {**BODY, "temperature": -1}) == 400

    (whole,) = receiver.spans
    assert attributes(whole)["error.type"] == "invalid_value"
    assert whole.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_fails_is_an_error_without_its_words(
    receiver: Receiver, *, stream: bool
) -> None:
    engine = TimedEngine(fails_after=1, failure=RequestFailed("The secret of the caller."))
    await post(await traced_app(engine, settings(receiver)), {**BODY, "stream": stream})

    whole = receiver.span("text_completion tiny")
    assert whole.status.code == Status.STATUS_CODE_ERROR
    assert "error.type" in attributes(whole)
    assert b"secret" not in b"".join(one.SerializeToString() for one in receiver.requests)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_left_is_said(receiver: Receiver, *, stream: bool) -> None:
    engine = TimedEngine(pauses_after=1)
    app = await traced_app(engine, settings(receiver))
    caller = Caller(app, "/v1/completions", {**BODY, "stream": stream})
    call = asyncio.create_task(caller.call())
    await engine.paused.wait()
    caller.hang_up()
    await call
    await app.state.http.tracing.close()

    whole = receiver.span("text_completion tiny")
    assert attributes(whole)["error.type"] == "client_disconnected"
    assert whole.status.code == Status.STATUS_CODE_UNSET


async def test_a_choice_that_never_ran_has_a_queue_alone(receiver: Receiver) -> None:
    engine = TimedEngine()
    engine.timelines = (Timeline(10.0, chunks=[]),)
    await post(await traced_app(engine, settings(receiver)), BODY)

    assert {span.name for span in receiver.spans} == {"text_completion tiny", "queue"}


async def test_choices_share_the_prefill_and_their_number_is_bounded(receiver: Receiver) -> None:
    engine = TimedEngine()
    engine.timelines = 200 * tuple(TimedEngine.timelines)
    await post(await traced_app(engine, settings(receiver)), BODY)

    names = [span.name for span in receiver.spans]
    assert names.count("queue") == names.count("prefill") == 1
    assert names.count("decode") == MAX_CHILDREN - 2
    whole = receiver.span("text_completion tiny")
    assert attributes(whole)["tandem.left_out_spans"] == 202 - MAX_CHILDREN


async def test_a_live_change_goes_to_another_receiver_and_off(receiver: Receiver) -> None:
    app = await traced_app(TimedEngine(), settings(receiver, 0.0))
    tracing = app.state.http.tracing
    await tracing.apply(settings(receiver, 1.0))
    async with client_of(app) as client:
        await client.post("/v1/completions", json=BODY)
        await tracing.apply(None)
        await client.post("/v1/completions", json=BODY)

    assert len([span for span in receiver.spans if span.name == "queue"]) == 1


async def test_what_cannot_be_set_up_leaves_requests_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: TracingSettings) -> Any:
        raise ImportError("no exporter")

    app = fake_app(TimedEngine())
    tracing = app.state.http.tracing
    tracing._make = broken
    await tracing.apply(
        TracingSettings(endpoint="http://a", sample_ratio=1.0, service_name="a", model_name="a")
    )

    assert await post(app, BODY) == 200
    assert "Requests are not traced" in caplog.text


async def test_a_fault_in_a_trace_leaves_the_answer_alone(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    engine = TimedEngine()
    engine.timelines = (Timeline("no number"),)  # type: ignore[arg-type]
    assert await post(await traced_app(engine, settings(receiver)), BODY) == 200
    assert "A trace is incomplete" in caplog.text

    app = fake_app(engine)
    app.state.http.tracing._tracer = Mock()
    app.state.http.tracing._tracer.begin.side_effect = ValueError
    assert await post(app, BODY) == 200
    assert "A request is not traced" in caplog.text


async def test_a_receiver_that_is_away_disturbs_no_request(receiver: Receiver) -> None:
    made = settings(receiver).model_copy(update={"endpoint": "http://127.0.0.1:9"})
    app = await traced_app(TimedEngine(), made)
    async with client_of(app) as client:
        response = await client.post("/v1/completions", json=BODY)

    assert response.status_code == 200
    await asyncio.wait_for(app.state.http.tracing.close(), timeout=HANG_S)


async def test_a_receiver_that_never_answers_delays_the_end_by_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = TracingSettings(
            endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}",
            sample_ratio=1.0,
            service_name="mine",
            model_name="tiny",
        )
        app = await traced_app(TimedEngine(), made)
        assert await post(app, BODY) == 200
        await asyncio.wait_for(app.state.http.tracing.close(), timeout=HANG_S)


async def test_without_tracing_the_engine_notes_nothing() -> None:
    engine = FakeEngine()
    assert await post(fake_app(engine), BODY, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01") == 200

    assert not engine.submitted[0].is_traced


def test_off_imports_neither_sdk_nor_exporter() -> None:
    """FastAPI imports OpenTelemetry's API, whatever the service asks for."""
    code = (
        "import sys, tandem_serve.http.app; "
        "sys.exit(any(name in sys.modules for name in "
        "['opentelemetry.sdk', 'opentelemetry.exporter', 'tandem_serve.http.otel']))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
