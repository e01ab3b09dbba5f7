"""The client of Prometheus: its answers and failures, over a real HTTP connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.autoscaler.prometheus import (
    MAX_ANSWER_BYTES,
    PrometheusClient,
    Unreachable,
    Unusable,
)
from tandem_operator.autoscaler.signals import Scope
from tandem_operator.render.settings import PrometheusSettings
from tests.unit.operator.autoscaler.fake_prometheus import FakePrometheus

SCOPE = Scope(namespace="demo", service="tiny", window_s=60, ttft_percentile=90)


class PrometheusCase:
    """A client of the fake, and what it has counted."""

    def __init__(self, fake: FakePrometheus, url: str) -> None:
        self.fake, self.url = fake, url
        self.counted: list[str] = []
        self.clients: list[PrometheusClient] = []

    def client(
        self, *, timeout_s: float = 5.0, pause_s: float = 0.0, **settings: str | None
    ) -> PrometheusClient:
        described = PrometheusSettings.model_validate({"url": self.url, **settings}, by_name=True)
        client = PrometheusClient(
            described, self.counted.append, timeout_s=timeout_s, pause_s=pause_s
        )
        self.clients.append(client)
        return client


@pytest.fixture
async def case() -> AsyncIterator[PrometheusCase]:
    fake = FakePrometheus()
    async with TestServer(fake.application()) as server:
        found = PrometheusCase(fake, str(server.make_url("/prefix")))
        yield found
        for client in found.clients:
            await client.close()


async def test_one_request_gives_all_signals(case: PrometheusCase) -> None:
    case.fake.has({"arrival_rate": 3.5})

    signals = await case.client().signals(SCOPE)

    assert {pod: one.arrival_rate for pod, one in signals.pods.items()} == {"a": 1.75, "b": 1.75}
    assert len(case.fake.queries) == 1
    assert case.counted == ["ok"]


async def test_a_span_is_counted_as_a_moment_is(case: PrometheusCase) -> None:
    client = case.client()
    case.fake.past = {60.0: case.fake.body}

    samples = await client.span("up", 0.0, 60.0, 30.0)
    case.fake.answers_spans = False
    with pytest.raises(Unreachable):
        await client.span("up", 0.0, 60.0, 30.0)

    assert sum(map(len, samples.values())) == len(case.fake.body["data"]["result"])
    assert case.counted == ["ok", "503"]


async def test_the_token_is_read_for_each_query(case: PrometheusCase, tmp_path: Path) -> None:
    path = tmp_path / "token"
    client = case.client(bearer_token_file=str(path))
    for token in ("first\n", "second\n"):
        path.write_text(token)
        await client.signals(SCOPE)

    assert case.fake.tokens == ["Bearer first", "Bearer second"]


async def test_a_missing_file_is_named(case: PrometheusCase, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"bearerTokenFile .*/none cannot be read"):
        await case.client(bearer_token_file=str(tmp_path / "none")).signals(SCOPE)
    with pytest.raises(Unreachable, match=r"caFile .*/none cannot be used"):
        await case.client(url="https://127.0.0.1:9", ca_file=str(tmp_path / "none")).signals(SCOPE)


async def test_without_an_address_the_setting_is_named(case: PrometheusCase) -> None:
    with pytest.raises(Unreachable, match=r"set autoscaling\.prometheus\.url"):
        await case.client(url=None).signals(SCOPE)


@pytest.mark.parametrize("code", [302, 401, 404, 500, 503])
async def test_a_status_is_told_and_counted(case: PrometheusCase, code: int) -> None:
    case.fake.code = code

    with pytest.raises(Unreachable, match=f"answers with the status {code}"):
        await case.client().signals(SCOPE)
    assert case.counted == [str(code)]


async def test_a_query_that_is_refused_has_prometheus_reason(case: PrometheusCase) -> None:
    case.fake.code = 422
    case.fake.body = {"status": "error", "error": "too many samples"}

    with pytest.raises(Unusable, match="too many samples"):
        await case.client().signals(SCOPE)
    assert case.counted == ["invalid"]


async def test_another_server_is_told(case: PrometheusCase) -> None:
    case.fake.text = "<html>"

    with pytest.raises(Unusable, match="cannot be used"):
        await case.client().signals(SCOPE)


async def test_a_long_answer_is_not_read_to_its_end(case: PrometheusCase) -> None:
    case.fake.text = json.dumps("x" * (MAX_ANSWER_BYTES + 1))

    with pytest.raises(Unusable, match="longer than 4096 KiB"):
        await case.client().signals(SCOPE)


async def test_after_a_failure_nothing_is_asked_for_a_while(case: PrometheusCase) -> None:
    """200 services do not wait for a Prometheus that is away, one after the other."""
    client = case.client(url="http://127.0.0.1:9", pause_s=60.0)
    for _ in range(3):
        with pytest.raises(Unreachable, match="gives no answer"):
            await client.signals(SCOPE)

    assert case.counted == ["none"]


async def test_a_slow_answer_is_cut_short(case: PrometheusCase) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    application = web.Application()
    application.router.add_post("/{path:.*}", hang)
    async with TestServer(application) as server:
        client = case.client(url=str(server.make_url("/slow")), timeout_s=0.1)
        with pytest.raises(Unreachable, match="no answer within"):
            await client.signals(SCOPE)
        await client.close()
