"""The loop that keeps status.microBatch and .ranks: a real client, a fake API server, replicas."""

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, RAY_SERVICE
from tandem_operator.k8s.names import REPLICA_PAGES
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics
from tandem_operator.replica_pages.reporter import ReplicaPageReporter
from tests.unit.operator.autoscaler.fake_api import NAMESPACE, pod, service
from tests.unit.operator.micro_batches.test_figures import page
from tests.unit.operator.ranks.test_figures import page as ranks_page
from tests.unit.operator.samples import connection_to

KEY = NamespacedName(NAMESPACE, "tiny")
_STATUS = "/apis/serving.tandem.dev/v1alpha1/namespaces/demo/inferenceservices/{name}/status"


class Surroundings:
    """One service, its pods and what they show; writes of the status are kept and carried out."""

    def __init__(self) -> None:
        self.cache = ObjectCache([INFERENCE_SERVICE, POD, RAY_SERVICE])
        for kind in (INFERENCE_SERVICE, POD, RAY_SERVICE):
            self.cache.replace(kind, None, [], "1")
        self.pages: dict[str, bytes] = {}
        self.writes: list[dict[str, Any]] = []
        self.refuses = False
        self.stack = AsyncExitStack()
        self._version = 1
        self._micro_batch: Any = True

    async def start(self) -> ReplicaPageReporter:
        application = web.Application()
        application.router.add_patch(_STATUS, self._write)
        application.router.add_get("/{pod}/metrics", self._metrics)
        server = await self.stack.enter_async_context(TestServer(application))
        url = str(server.make_url("/"))
        kube = KubeClient.connect(connection_to(url), Metrics().count_request)
        self.stack.push_async_callback(kube.close)
        return ReplicaPageReporter(
            kube,
            cache=self.cache,
            address=f"http://{{ip}}:{server.port}/{{pod}}/metrics",
            services=lambda: self.cache.keys(INFERENCE_SERVICE, None),
        )

    def put(self, *, micro_batch: Any = True, status: Any = None) -> None:
        self._micro_batch = micro_batch
        item = service()
        item["spec"]["engine"] = {"streamOptions": {"microBatch": micro_batch}}
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.cache.put(INFERENCE_SERVICE, item | ({"status": status} if status else {}))

    def has_pods(self, *names: str, ready: bool = True) -> None:
        self._version += 1
        pods = [pod(name, time.time(), ready=ready) for name in names]
        for one in pods:
            one["metadata"]["resourceVersion"] = str(self._version)
        self.cache.replace(POD, None, pods, str(self._version))

    async def _write(self, request: web.Request) -> web.Response:
        assert request.query["fieldManager"] == REPLICA_PAGES
        if self.refuses:
            return web.json_response({"kind": "Status", "code": 500, "message": "no"}, status=500)
        body = json.loads(await request.text())
        self.writes.append(body["status"])
        self.put(micro_batch=self._micro_batch, status=body["status"])
        found = self.cache.get(INFERENCE_SERVICE, KEY)
        return web.json_response(found)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.pages[request.match_info["pod"]])


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    found = Surroundings()
    async with found.stack:
        yield found


async def test_the_replicas_that_answer_are_told_of_once(around: Surroundings) -> None:
    reporter = await around.start()
    around.put()
    around.has_pods("a", "b")
    around.pages = {"a": page(), "b": page(overlap=0.8)}

    await reporter.round()
    await reporter.round()

    (written,) = around.writes
    assert written["microBatch"]["replicas"] == 2
    assert written["microBatch"]["overlap"] == 0.85


async def test_a_replica_that_cannot_be_read_is_not_counted(around: Surroundings) -> None:
    reporter = await around.start()
    around.put()
    around.has_pods("a", "gone")
    around.pages = {"a": page()}

    await reporter.step(KEY)

    assert around.writes[0]["microBatch"]["replicas"] == 1


async def test_pods_that_are_not_ready_are_not_asked(around: Surroundings) -> None:
    reporter = await around.start()
    around.put()
    around.has_pods("a", ready=False)

    await reporter.step(KEY)

    assert around.writes[0]["microBatch"]["message"] == "no replica runs"


@pytest.mark.parametrize("micro_batch", [False, "yes", None])
async def test_a_service_without_has_nothing_and_loses_what_it_had(
    around: Surroundings, micro_batch: Any
) -> None:
    reporter = await around.start()
    around.put(micro_batch=micro_batch)
    await reporter.step(KEY)
    assert not around.writes

    around.put(micro_batch=micro_batch, status={"microBatch": {"replicas": 1}})
    await reporter.step(KEY)
    assert around.writes == [{}]


async def test_a_write_that_fails_ends_no_round(
    around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = await around.start()
    around.put()
    around.refuses = True

    with caplog.at_level(logging.WARNING):
        await reporter.round()
    assert "demo/tiny: what its replicas show was not written: " in caplog.text

    around.refuses = False
    await reporter.round()
    assert len(around.writes) == 1


async def test_the_memory_of_ranks_is_told_of_any_service_until_no_replica_runs(
    around: Surroundings,
) -> None:
    reporter = await around.start()
    around.put(micro_batch=None)
    around.has_pods("a", "b", "c")
    around.pages = {"a": ranks_page(), "b": ranks_page(weights=5), "c": ranks_page(weights=9)}

    await reporter.round()
    around.pages = dict.fromkeys("abc", b"")
    await reporter.round()
    (written,) = around.writes
    assert written["ranks"]["replicas"] == 2, "it is the same of all, so two are read"
    assert [one["weightsBytes"] for one in written["ranks"]["memory"]] == [5, 5]

    around.has_pods()
    await reporter.round()
    assert around.writes[1:] == [{}]


async def test_a_service_that_is_gone_or_not_covered_is_left_alone(around: Surroundings) -> None:
    reporter = await around.start()
    await reporter.step(KEY)
    around.put()
    around.cache.forget(POD, None)

    await reporter.step(KEY)

    assert not around.writes
