"""What the operator's loop costs: CPU and memory for many services, with servers beside it.

python -m benchmarks.autoscaling.loop_cost --services 200 --replicas 3

The servers, a fake Prometheus, API server and replica, are another process, so only the loop's own
work counts: it parses services and pods, asks, checks, decides, and writes the status.
"""

import asyncio
import json
import multiprocessing
import re
import resource
import ssl
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Annotated, Any, Final

import typer
from aiohttp import web
from kubernetes.aio.client import Configuration

from tandem_operator.autoscaler.autoscaler import Autoscaler
from tandem_operator.autoscaler.cross_check import CrossCheck
from tandem_operator.autoscaler.loop import AutoscalerLoop
from tandem_operator.autoscaler.prometheus import PrometheusClient
from tandem_operator.autoscaler.publish import Publisher
from tandem_operator.autoscaler.refusals import Refusals
from tandem_operator.clock import from_unix_s
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.connection import Connection, Login
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, RAY_SERVICE
from tandem_operator.k8s.names import pod_labels
from tandem_operator.metrics import Metrics
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.tasks import cancel

_SETTLE_S: Final = 15.0
"""Seconds in which each service has its first step, which parses its spec and writes its status."""

_FIGURES: Final = {
    "ttft_s": 0.6, "ttft_samples": 100, "tpot_s": 0.05, "tpot_samples": 100,
    "tpot_pace_ratio": 0.95, "token_budget": 512, "token_budget_used_ratio": 0.7,
}  # fmt: skip
_OF_REPLICAS: Final = {
    "exposures": 4, "refused_rate": 0, "queue_age_s": 0, "ongoing_requests": 8, "least_running": 1,
    "steps": 3000, "kv_usage": 0.5, "capacity": 10, "concurrency": 20, "zero_load_ttft_s": 0.3,
    "zero_load_tpot_s": 0.04,
}  # fmt: skip
_SERVICE: Final = re.compile(r'inference_service="([^"]*)"')

Object = dict[str, Any]


def main(  # noqa: PLR0917  # options, which typer passes by name
    services: Annotated[int, typer.Option(min=1, help="Services in mode Auto.")] = 200,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of each.")] = 3,
    period: Annotated[int, typer.Option(min=1, help="Seconds of a period.")] = 15,
    seconds: Annotated[float, typer.Option(help="Seconds that are measured.")] = 60.0,
    pods_elsewhere: Annotated[
        int, typer.Option(min=0, help="Pods that fill the nodes, while every service is to grow.")
    ] = 0,
    is_hanging: Annotated[
        bool, typer.Option("--hanging", help="Replicas that never show their metrics.")
    ] = False,
) -> None:
    """Print the loop's share of a core and its memory."""
    ours, theirs = multiprocessing.Pipe()
    world = _World(replicas, pods_elsewhere, is_hanging)
    servers = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, world), daemon=True
    )
    servers.start()
    try:
        figures = asyncio.run(_measure(ours.recv(), services, replicas, period, seconds))
    finally:
        servers.terminate()
        servers.join()
    print(json.dumps(figures))  # the result


@dataclass(frozen=True, slots=True)
class _World:
    """Surroundings of the loop."""

    replicas: int
    pods_elsewhere: int
    is_hanging: bool


async def _measure(
    url: str, services: int, replicas: int, period: int, seconds: float
) -> dict[str, float]:
    before_mib = _resident_mib()
    loop, metrics = _loop(url, services, replicas, period)
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(_SETTLE_S)
    cpu_s, steps, began = _cpu_s(), _steps(metrics), time.monotonic()
    lists = _pod_lists(metrics)
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began
    figures = {
        "services": services,
        "replicas": replicas,
        "steps_per_s": round((_steps(metrics) - steps) / took_s, 2),
        "cpu_percent": round(100 * (_cpu_s() - cpu_s) / took_s, 2),
        "cpu_ms_per_step": round(1000 * (_cpu_s() - cpu_s) / max(_steps(metrics) - steps, 1), 2),
        "memory_mib": round(_resident_mib() - before_mib, 1),
        "pod_lists_per_period": round((_pod_lists(metrics) - lists) * period / took_s, 2),
    }
    await cancel({task})
    return figures


def _loop(url: str, services: int, replicas: int, period: int) -> tuple[AutoscalerLoop, Metrics]:
    settings = OperatorSettings.model_validate(
        {
            "replica": {"image": "registry/tandem:1"},
            "autoscaling": {"periodSeconds": period, "prometheus": {"url": url}},
        },
        by_alias=True,
    )
    configuration, metrics = Configuration(host=url), Metrics()
    connection = Connection(
        configuration=configuration,
        tls=ssl.create_default_context(),
        namespace="demo",
        login=Login(configuration),
    )
    kube = KubeClient.connect(connection, metrics.count_request)
    cache, counts = _cache(services, replicas), metrics.autoscaler
    kube.on_written = cache.put
    prometheus = PrometheusClient(settings.autoscaling.prometheus, counts.count_query)

    async def close() -> None:
        await prometheus.close()
        await kube.close()

    autoscaler = Autoscaler(
        kube,
        settings,
        cache=cache,
        prometheus=prometheus,
        cross_check=CrossCheck(f"{url}/metrics", counts.count_cross_check),
        refusals=Refusals(),
        publisher=Publisher(kube, EventRecorder(kube, "benchmark")),
        metrics=counts,
    )
    loop = AutoscalerLoop(
        autoscaler,
        counts,
        period_s=period,
        services=lambda: cache.keys(INFERENCE_SERVICE, None),
        close=close,
    )
    return loop, metrics


def _cache(services: int, replicas: int) -> ObjectCache:
    cache = ObjectCache([INFERENCE_SERVICE, POD, RAY_SERVICE])
    listed = {
        INFERENCE_SERVICE: [_service(number, replicas) for number in range(services)],
        POD: [_pod(service, replica) for service in range(services) for replica in range(replicas)],
        RAY_SERVICE: [],
    }
    for kind, items in listed.items():
        cache.replace(kind, None, items, "1")
    return cache


def _metadata(name: str) -> Object:
    return {"name": name, "namespace": "demo", "uid": name, "resourceVersion": "1"}


def _service(number: int, replicas: int) -> Object:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.name,
        "metadata": {**_metadata(f"tiny-{number}"), "generation": 1},
        "spec": {
            "model": {"source": "pvc://weights/tiny"},
            "slo": {"ttft": {"target": "1500ms"}, "tpot": {"target": "80ms"}},
            "scaling": {"mode": "Auto", "maxReplicas": 64},
        },
        "status": {"scaling": {"mode": "Auto", "desiredReplicas": replicas}},
    }


def _pod(service: int, number: int) -> Object:
    since = from_unix_s(time.time() - 1000)
    # About as long as a real one.
    env = [{"name": f"VARIABLE_{index}", "value": "x" * 40} for index in range(60)]
    return {
        "metadata": {
            **_metadata(f"tiny-{service}-{number}"),
            "creationTimestamp": since,
            "labels": pod_labels(f"tiny-{service}", "worker"),
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "ray-worker", "env": env}]},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
        },
    }


def _serve(pipe: Pipe, world: _World) -> None:
    """Serve as Prometheus, API server and replica until the process is ended."""
    asyncio.run(_Servers(world).run(pipe))


class _Servers:
    def __init__(self, world: _World) -> None:
        self._world = world
        self._replicas = world.replicas
        self._placed = json.dumps({"items": [_placed_pod()] * world.pods_elsewhere})
        self._began = time.time()
        self._version = 10

    async def run(self, pipe: Pipe) -> None:
        application = web.Application()
        application.router.add_post("/api/v1/query", self._query)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/api/v1/nodes", self._nodes)
        application.router.add_get("/api/v1/pods", self._pods)
        application.router.add_route("*", "/{path:.*}", self._write)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        pipe.send(f"http://{host}:{port}")
        await asyncio.Event().wait()

    @property
    def _received(self) -> int:
        return int(20 * (time.time() - self._began))

    async def _query(self, request: web.Request) -> web.Response:
        match = _SERVICE.search(str((await request.post())["query"]))
        service, now = match[1] if match else "", time.time()
        load = 20 if self._world.pods_elsewhere else 7
        figures = {**_FIGURES, "evaluated_at": now}
        vector = [_sample({"signal": name}, now, value) for name, value in figures.items()]
        parts = {
            **_OF_REPLICAS, "arrival_rate": load, "received": self._received, "scraped_at": now,
            "exposed_at": now, "started_at": self._began,
        }  # fmt: skip
        vector += [
            _sample({"signal": f"pod_{name}", "pod": f"{service}-{number}"}, now, value)
            for number in range(self._replicas)
            for name, value in parts.items()
        ]
        data = {"resultType": "vector", "result": vector}
        return web.json_response({"status": "success", "data": data})

    async def _nodes(self, _: web.Request) -> web.Response:
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "110"},
        }
        return web.json_response({"items": [{"metadata": {"name": "n1"}, "status": status}]})

    async def _pods(self, _: web.Request) -> web.Response:
        return web.Response(text=self._placed, content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        if self._world.is_hanging:
            await asyncio.Event().wait()
        # A real one has some hundred lines of buckets.
        lines = [f'tandem_bucket{{model_name="tiny",le="{index}"}} 1.0' for index in range(400)]
        lines += [
            f'tandem_request_received_total{{model_name="tiny"}} {self._received}',
            f"process_start_time_seconds {self._began}",
            f"tandem_exposition_timestamp_seconds {time.time()}",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _write(self, request: web.Request) -> web.Response:
        self._version += 1
        body = json.loads(await request.text() or "{}")
        name = request.path.split("/")[-2]
        written = _service(0, self._replicas)
        written["metadata"] = {
            **_metadata(name), "generation": 1, "resourceVersion": str(self._version)
        }  # fmt: skip
        return web.json_response(written | {"status": body.get("status", {})})


def _sample(metric: Object, now: float, value: float) -> Object:
    return {"metric": metric, "value": [now, str(value)]}


def _placed_pod() -> Object:
    pod = _pod(0, 0)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m", "memory": "1Ki"}}
    return pod


def _pod_lists(metrics: Metrics) -> float:
    name = "tandem_operator_api_requests_total"
    labels = {"verb": "list", "resource": "pods", "code": "200"}
    return metrics.registry.get_sample_value(name, labels) or 0.0


def _steps(metrics: Metrics) -> float:
    count = metrics.registry.get_sample_value("tandem_operator_autoscaler_duration_seconds_count")
    return count or 0.0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    typer.run(main)
