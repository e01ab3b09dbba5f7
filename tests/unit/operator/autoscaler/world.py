"""One service with its surroundings: a fake API server, a fake Prometheus, fake pods."""

import time
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.autoscaler.autoscaler import Autoscaler
from tandem_operator.autoscaler.cross_check import CrossCheck
from tandem_operator.autoscaler.prometheus import PrometheusClient
from tandem_operator.autoscaler.publish import Publisher
from tandem_operator.autoscaler.refusals import Refusals
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import RAY_SERVICE
from tandem_operator.k8s.names import COMPONENT, HEAD, RAY_CLUSTER
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics
from tandem_operator.render.settings import OperatorSettings
from tests.unit.operator.autoscaler import fake_prometheus
from tests.unit.operator.autoscaler.fake_api import FakeApi, pod
from tests.unit.operator.autoscaler.fake_prometheus import HEALTHY, FakePrometheus
from tests.unit.operator.samples import connection_to

KEY = NamespacedName("demo", "tiny")


class World:
    """One service with its surroundings; operators come and go."""

    def __init__(self) -> None:
        self.api, self.prometheus = FakeApi(), FakePrometheus()
        self.metrics = Metrics()
        self.exposition = ""
        self.reads = 0
        self.proxy_exposition = ""
        self.stack = AsyncExitStack()
        self.settings: dict[str, Any] = {}
        self.api.nodes = [ready_node("64", "256Gi")]

    async def start(self) -> None:
        self.kube_url = await self._serve(self.api.application())
        self.prometheus_url = await self._serve(self.prometheus.application()) + "prefix"
        replica = web.Application()
        replica.router.add_get("/metrics", self._metrics)
        self.replica_url = await self._serve(replica) + "metrics"
        proxy = web.Application()
        proxy.router.add_get("/metrics", self._proxy_metrics)
        self.proxy_url = await self._serve(proxy) + "metrics?scope=backend"

    async def _serve(self, application: web.Application) -> str:
        server = await self.stack.enter_async_context(TestServer(application))
        return str(server.make_url("/"))

    async def _proxy_metrics(self, request: web.Request) -> web.Response:
        assert request.query_string == "scope=backend"
        return web.Response(text=self.proxy_exposition)

    async def _metrics(self, _: web.Request) -> web.Response:
        self.reads += 1
        return web.Response(text=self.exposition)

    def operator(self, *, may_write: bool = True) -> Autoscaler:
        """Return a new process."""
        settings = OperatorSettings.model_validate(
            {
                "replica": {"image": "registry.test/replica:1"},
                "allowHostPath": True,
                "autoscaling": {"prometheus": {"url": self.prometheus_url}, **self.settings},
            },
            by_alias=True,
        )
        kube = KubeClient.connect(connection_to(self.kube_url), self.metrics.count_request)
        kube.on_written = self.api.cache.put
        kube.may_write = lambda: may_write
        self.stack.push_async_callback(kube.close)
        counts = self.metrics.autoscaler
        client = PrometheusClient(settings.autoscaling.prometheus, counts.count_query, pause_s=0.0)
        self.stack.push_async_callback(client.close)
        return Autoscaler(
            kube,
            settings,
            cache=self.api.cache,
            prometheus=client,
            cross_check=CrossCheck(self.replica_url, counts.count_cross_check),
            refusals=Refusals(self.proxy_url),
            publisher=Publisher(kube, EventRecorder(kube, "test")),
            metrics=counts,
        )

    def load(self, values: dict[str, float] | None = None, pods: int = 2) -> None:
        """Have so many replicas, and these figures of them over the healthy ones."""
        now = time.time()
        names = [f"replica-{number}" for number in range(pods)]
        self.api.has_pods(*(pod(name, now) for name in names))
        scraped = fake_prometheus.scraped(names, now - 5)
        self.prometheus.body = fake_prometheus.answer(HEALTHY | (values or {}), scraped, now)
        self.shows(200.0)

    def loaded_before(self, ago_s: float, values: dict[str, float], pods: int = 2) -> None:
        """Have had these figures over the healthy ones so many seconds ago."""
        now = time.time() - ago_s
        names = [f"replica-{number}" for number in range(pods)]
        scraped = fake_prometheus.scraped(names, now - 5)
        self.prometheus.past[ago_s] = fake_prometheus.answer(HEALTHY | values, scraped, now)

    def has_odd(self, name: str, **parts: float) -> None:
        """Have other figures of one replica, in Prometheus."""
        vector = self.prometheus.body["data"]["result"]
        for one in vector:
            labels = one["metric"]
            part = labels["signal"].removeprefix("pod_")
            if labels.get("pod") == name and part in parts:
                one["value"] = [one["value"][0], str(parts[part])]

    def refuses(self, requests: int | None, *, controlled: bool = True) -> None:
        """Have a head alone, whose proxy has refused so many requests; None: it does not say.

        One that no RayCluster controls has KubeRay's labels alone.
        """
        head = pod("head", time.time())
        head["metadata"]["labels"] |= {COMPONENT: HEAD, RAY_CLUSTER: "cluster"}
        if not controlled:
            del head["metadata"]["ownerReferences"]
        self.api.has_pods(head)
        self.has_active_cluster()
        name = "haproxy_backend_http_requests_total"
        others = f'{name}{{proxy="tandem_at_zero"}} 7\n'
        count = f'{name}{{proxy="tandem_demand"}} {requests}\n'
        self.proxy_exposition = others + (count if requests is not None else "")
        # Of a service without replicas Prometheus has nothing.
        self.prometheus.body = fake_prometheus.answer({}, {}, time.time())

    def has_active_cluster(self) -> None:
        """Have a RayCluster that serves: `cluster`."""
        ray_service = {
            "metadata": {"name": "tiny", "namespace": "demo", "uid": "r", "resourceVersion": "5"},
            "status": {"activeServiceStatus": {"rayClusterName": "cluster"}},
        }
        self.api.cache.put(RAY_SERVICE, ray_service)

    def shows(self, received: float) -> None:
        """Have the replicas themselves show so many requests."""
        now = time.time()
        self.exposition = (
            f'tandem_request_received_total{{model_name="tiny"}} {received}\n'
            f"process_start_time_seconds {now - 1005}\n"
            f"tandem_exposition_timestamp_seconds {now}\n"
        )

    @property
    def scaling(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.status().get("scaling", {})
        return found

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = self.scaling["decisions"][-1]
        return found

    def event_reasons(self) -> list[str]:
        return [event["reason"] for event in self.api.events]


def with_status(item: dict[str, Any], **scaling: Any) -> dict[str, Any]:
    return {**item, "status": {"scaling": {"mode": "Auto", **scaling}}}


def ready_node(cpu: str, memory: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
