"""`tandem export keda` and the real KEDA: an HPA scales a service by the service's own SLO.

Real are Kubernetes with its HPA controller, KEDA, Prometheus under its operator, the chart's
PodMonitor, and Tandem's operator. There is no Ray: a stand-in for a replica is a pod with a
replica's labels and metrics, and the test adds and removes these pods as KubeRay would.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem_operator.crd.manifest import NAME as CRD_NAME
from tandem_operator.k8s import names
from tests.e2e.harness import wait_for
from tests.figures import Times
from tests.integration.chart.helm import Helm
from tests.integration.cluster import pods
from tests.integration.cluster.commands import install
from tests.integration.operator import conftest as operators
from tests.integration.operator.process import Namespace, OperatorProcess, end_all, manifest
from tools.cluster import Cluster, monitoring, prepare

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SLOW_S, FAST_S = 3.0, 0.2
TARGET = "1s"
# A stand-in for a replica: 5 requests a second, each with the TTFT that its file says; no TTFT, no
# metrics.
REPLICA = """
import http.server, pathlib, threading, time

EDGES = (0.25, 0.5, 1.0, 2.0, 4.0, float("inf"))
counts, told = dict.fromkeys(EDGES, 0), pathlib.Path("/tmp/ttft")
told.write_text("0.2")

def observe():
    while True:
        time.sleep(0.2)
        ttft_s = float(told.read_text() or "nan")
        for edge in EDGES:
            counts[edge] += ttft_s <= edge

def exposition():
    ttft, received = "tandem_time_to_first_token_seconds", "tandem_request_received_total"
    queue_age = "tandem_queue_age_seconds"
    lines = [f"# TYPE {ttft} histogram"]
    for edge, count in counts.items():
        text = "+Inf" if edge == EDGES[-1] else str(edge)
        lines.append(f'{ttft}_bucket{{model_name="tiny",le="{text}"}} {count}')
    lines.append(f'{ttft}_count{{model_name="tiny"}} {counts[EDGES[-1]]}')
    lines += [f"# TYPE {received} counter", f'{received}{{model_name="tiny"}} {counts[EDGES[-1]]}']
    lines += [f"# TYPE {queue_age} gauge", f'{queue_age}{{model_name="tiny"}} 0']
    return "\\n".join(lines) + "\\n"

class Replica(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write((exposition() if told.read_text() else "").encode())

threading.Thread(target=observe, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 9464), Replica).serve_forever()
"""


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Times:
    return Times.of(request.config, "seconds of KEDA")


@pytest.fixture
def namespace(cluster: Cluster, times: Times) -> Iterator[Namespace]:
    """A namespace on a cluster with monitoring, KEDA, and the kinds of Tandem and Ray."""
    for what in ("monitoring", "keda"):
        with times.measure(f"{what} installed"):
            install(cluster, what)
    for name in (CRD_NAME, *operators.RAY_CRDS):
        operators.install(cluster, name)
    name = "scaled-by-keda"
    cluster.kubectl("create", "namespace", name)
    yield Namespace(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def operator(namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that leads."""
    settings = {"autoscaling": {"periodSeconds": 1}}
    started = OperatorProcess(
        namespace=namespace, folder=tmp_path, identity="first", settings=settings
    )
    yield started.start().wait_until_leading()
    end_all([started])


class Replicas:
    """Stand-ins for the replicas of the service."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def follow(self, count: int) -> None:
        """Have so many, all ready."""
        for number in range(count):
            if not self._namespace.get("pod", f"replica-{number}"):
                self._namespace.apply(_replica(f"replica-{number}"))
                self._namespace.kubectl(
                    "wait", "--for=condition=Ready", f"pod/replica-{number}", "--timeout=120s"
                )
        self._namespace.kubectl("delete", "pod", f"replica-{count}", "--ignore-not-found")

    def say(self, ttft_s: float | None, *, of: int) -> None:
        """Have `of` replicas show this TTFT from now on; None: they show nothing."""
        text = "" if ttft_s is None else str(ttft_s)
        for number in range(of):
            write = f"printf '{text}' > /tmp/ttft"
            self._namespace.kubectl("exec", f"replica-{number}", "--", "sh", "-c", write)


def _replica(name: str) -> dict[str, Any]:
    pod = pods.manifest(name, REPLICA, **names.pod_labels("tiny", names.WORKER))
    container = pod["spec"]["containers"][0]
    container["ports"] = [{"name": "metrics", "containerPort": names.REPLICA_METRICS_PORT}]
    probe = {"tcpSocket": {"port": names.REPLICA_METRICS_PORT}, "periodSeconds": 1}
    container["readinessProbe"] = probe
    return pod


def pod_monitor(namespace: Namespace) -> dict[str, Any]:
    """The chart's own, which asks for every replica each second."""
    values = {"metrics": {"podMonitor": {"enabled": True, "interval": "1s"}}}
    helm = Helm(prepare().built.programs["helm"], os.environ)
    found = helm.template(values=[values], namespace=namespace.name)
    return next(one for one in found if one["kind"] == "PodMonitor")


def exported(namespace: Namespace) -> Any:
    """The output of the command as a user runs it."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tandem_serve", "export", "keda", "tiny"),
            *("-n", namespace.name, "--prometheus", monitoring.PROMETHEUS_URL),
        ],
        env=namespace.cluster.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_keda_scales_by_the_slo_through_the_scale_subresource(
    namespace: Namespace, operator: OperatorProcess, times: Times
) -> None:
    replicas = Replicas(namespace)
    namespace.apply(pod_monitor(namespace), external())
    wait_until(namespace, lambda: number(namespace) == 1, "the first number is in the spec")
    replicas.follow(1)
    namespace.cluster.kubectl("apply", "--filename=-", input=exported(namespace))
    with times.measure("ScaledObject applied → Ready, and its HPA reads the metrics"):
        wait_until(namespace, lambda: condition(namespace, "scaledobject", "Ready"), "it is Ready")
        wait_until(namespace, lambda: condition(namespace, "hpa", "ScalingActive"), "it is active")
    assert number(namespace) == 1

    replicas.say(SLOW_S, of=1)
    with times.measure("TTFT three times its target → the HPA asks for a replica more"):
        wait_until(namespace, lambda: number(namespace) == 2, "the spec asks for 2")
    assert rescaled_by(namespace) == {"keda-hpa-tiny"}
    with times.measure("… → Tandem renders it"):
        wait_until(namespace, lambda: rendered(namespace) == 2, "Ray is asked for 2")
    wait_until(namespace, lambda: scaling(namespace)["desiredReplicas"] == 2, "the status says 2")
    assert scaling(namespace)["mode"] == "External"
    replicas.follow(2)

    replicas.say(None, of=2)
    with times.measure("no replica shows metrics → the HPA says that it is blind"):
        wait_until(namespace, lambda: not condition(namespace, "hpa", "ScalingActive"), "blind")
    assert (number(namespace), rendered(namespace)) == (2, 2), "absent is not zero"

    replicas.say(FAST_S, of=2)
    with times.measure("TTFT a fifth of its target → the HPA asks for one"):
        wait_until(namespace, lambda: number(namespace) == 1, "the spec asks for 1")
    wait_until(namespace, lambda: rendered(namespace) == 1, "Ray is asked for 1")
    assert operator.alive.poll() is None


def external() -> dict[str, Any]:
    """The service; another owns its number."""
    at_once = {"stabilizationWindowSeconds": 0}
    scaling = {
        "mode": "External", "minReplicas": 1, "maxReplicas": 2,
        "behavior": {"scaleUp": at_once, "scaleDown": at_once},
    }  # fmt: skip
    return manifest(slo={"ttft": {"target": TARGET}}, scaling=scaling)


def wait_until(namespace: Namespace, is_so: Any, what: str) -> None:
    """Wait, and tell what KEDA and its HPA say when it fails."""

    def told() -> str:
        return namespace.kubectl("describe", "hpa,scaledobjects,isvc")

    wait_for(is_so, what, instead=told)


def number(namespace: Namespace) -> int | None:
    """The number in the spec, which the scale subresource writes."""
    found = namespace.get("isvc", "tiny") or {}
    count: int | None = found["spec"]["scaling"].get("replicas")
    return count


def scaling(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("isvc", "tiny") or {}
    status: dict[str, Any] = found.get("status", {}).get("scaling", {})
    return status


def rendered(namespace: Namespace) -> int:
    """The number in the RayService."""
    ray_service = namespace.get("rayservice", "tiny") or {"spec": {"serveConfigV2": ""}}
    text = ray_service["spec"]["serveConfigV2"]
    return int(text.partition("num_replicas: ")[2].split()[0]) if text else 0


def condition(namespace: Namespace, kind: str, expected: str) -> bool:
    """Return True when the object of a kind that KEDA reads or makes has this condition."""
    name = "keda-hpa-tiny" if kind == "hpa" else "tiny"
    found = namespace.get(kind, name) or {}
    conditions = found.get("status", {}).get("conditions", ())
    return any(one["type"] == expected and one["status"] == "True" for one in conditions)


def rescaled_by(namespace: Namespace) -> set[str]:
    """The HPAs that have written through the scale subresource, which is their only way."""
    return {
        one["involvedObject"]["name"]
        for one in namespace.list("events")
        if one["reason"] == "SuccessfulRescale"
    }
