"""What replicas show, in a real API server: parts of a status that three field managers write."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.k8s import names
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.connection import connect
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, RAY_SERVICE
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.replica_pages.reporter import ReplicaPageReporter
from tests.integration.operator.process import Namespace, manifest
from tests.unit.operator.autoscaler.fake_api import pod
from tests.unit.operator.ranks.test_figures import page

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

OTHERS = {"model": "tiny", "message": "1 of 2 replicas loads its weights"}
UNREACHABLE = "http://127.0.0.1:9/metrics"
SIZES = {"processBytes": 100, "weightsBytes": 4, "kvCacheBytes": 3 << 33, "stepBytes": 7}


@pytest.fixture
async def kube(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    monkeypatch.setenv("KUBECONFIG", namespace.cluster.environment["KUBECONFIG"])
    client = KubeClient.connect(await connect(None), lambda *_: None)
    yield client
    await client.close()


def with_micro_batches(*, on: bool) -> dict[str, Any]:
    engine = {"parallelism": {"tp": 2}, "streamOptions": {"microBatch": on}}
    return manifest(engine=engine, resources={"cpu": 2, "memory": "2Gi"})


def found(namespace: Namespace) -> dict[str, Any]:
    item = namespace.get("isvc", "tiny")
    assert item
    return item


async def reconciled(kube: KubeClient, item: dict[str, Any]) -> None:
    """Write what the reconciler would."""
    document = {name: item[name] for name in ("apiVersion", "kind")}
    metadata = {name: item["metadata"][name] for name in ("name", "namespace", "uid")}
    document |= {"metadata": metadata, "status": OTHERS}
    await kube.apply_status(INFERENCE_SERVICE, document, manager=names.FIELD_MANAGER)


async def reported(
    kube: KubeClient,
    namespace: Namespace,
    *pods: dict[str, Any],
    address: str = UNREACHABLE,
) -> dict[str, Any]:
    """Make a round over the service as it is; return its status."""
    item = found(namespace)
    cache = ObjectCache([INFERENCE_SERVICE, POD, RAY_SERVICE])
    cache.replace(INFERENCE_SERVICE, None, [item], item["metadata"]["resourceVersion"])
    cache.replace(POD, None, pods, "1")
    reporter = ReplicaPageReporter(
        kube, cache=cache, address=address, services=lambda: [NamespacedName.of(item)]
    )
    assert await reporter.round()
    status: dict[str, Any] = found(namespace)["status"]
    return status


async def test_it_is_written_beside_the_others_and_taken_away_alone(
    kube: KubeClient, namespace: Namespace
) -> None:
    namespace.apply(with_micro_batches(on=True))
    await reconciled(kube, found(namespace))

    status = await reported(kube, namespace)
    assert status["microBatch"]["message"] == "no replica runs"
    await reconciled(kube, found(namespace))
    assert found(namespace)["status"] == status, "a reconcile takes nothing away"

    namespace.apply(with_micro_batches(on=False))
    status = await reported(kube, namespace)
    assert status == OTHERS


async def test_the_memory_of_ranks_is_kept_as_the_replica_shows_it(
    kube: KubeClient, namespace: Namespace
) -> None:
    namespace.apply(with_micro_batches(on=False))
    await reconciled(kube, found(namespace))
    replica = pod("tiny-0", time.time())
    replica["metadata"]["namespace"] = found(namespace)["metadata"]["namespace"]

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page(step=7))

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    async with TestServer(application) as server:
        address = str(server.make_url("/metrics"))
        status = await reported(kube, namespace, replica, address=address)

    assert status["ranks"]["memory"] == [{"rank": rank, **SIZES} for rank in (0, 1)]
    assert "ranks" not in await reported(kube, namespace)
