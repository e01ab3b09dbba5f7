"""The autoscaler against a real API server; Prometheus and the replicas are fakes on loopback."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tandem_operator.clock import to_unix_s
from tandem_operator.k8s import names
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.connection import connect
from tandem_operator.k8s.errors import Conflict
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.objects import NamespacedName
from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import Namespace, OperatorProcess, manifest, until
from tests.integration.operator.ray_clusters import controlled_by, make_cluster
from tests.unit.operator.autoscaler.fake_prometheus import HEALTHY, answer, scraped

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SLO = {"ttft": {"target": "1500ms"}, "tpot": {"target": "80ms"}}
OVERLOAD = {"arrival_rate": 60.0, "ttft_s": 3.0}
RECEIVED = 100.0


class Figures:
    """A fake Prometheus and a fake replica; what they say is set by the test."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.pods: list[str] = []
        self.is_away = False
        self.received = RECEIVED
        self.queries = 0
        figures = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                figures.queries += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(503 if figures.is_away else 200, figures.answer())

            def do_GET(self) -> None:
                self.reply(200, figures.exposition())

            def reply(self, code: int, text: str) -> None:
                body = text.encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self) -> str:
        now = time.time()
        pods = scraped(self.pods, now - 2, received=RECEIVED, started_at=1.0)
        return json.dumps(answer(HEALTHY | self.values, pods, now))

    def exposition(self) -> str:
        return (
            f'tandem_request_received_total{{model_name="tiny"}} {self.received}\n'
            f"process_start_time_seconds 1.0\ntandem_exposition_timestamp_seconds {time.time()}\n"
        )


@pytest.fixture
def figures() -> Iterator[Figures]:
    found = Figures()
    yield found
    found.server.shutdown()
    found.server.server_close()


def start(start_operator: StartOperator, figures: Figures, identity: str = "first") -> Any:
    settings = {"autoscaling": {"periodSeconds": 1, "prometheus": {"url": figures.url}}}
    options = (f"--replica-address={figures.url}/metrics",)
    return start_operator(identity, settings=settings, options=options)


def has_replicas(namespace: Namespace, figures: Figures, count: int) -> None:
    """Have so many replicas that answer; no kubelet knows of their pods."""
    owner = controlled_by(make_cluster(namespace))
    for number in range(count):
        name = f"replica-{number}"
        namespace.apply(pod(name, owner))
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        changes = {"status": {**status, "conditions": [ready]}}
        namespace.patch("pod", name, changes, "--subresource=status")
        figures.pods.append(name)


def pod(name: str, owner: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": names.pod_labels("tiny", names.WORKER), **owner},
        "spec": {
            "schedulerName": "none-there-is",
            "containers": [{"name": "replica", "image": "registry/none:1"}],
        },
    }


def scaling(namespace: Namespace) -> dict[str, Any]:
    status = (namespace.get("isvc", "tiny") or {}).get("status", {})
    found: dict[str, Any] = status.get("scaling", {})
    return found


def last_reason(namespace: Namespace) -> str:
    decisions = scaling(namespace).get("decisions") or [{}]
    return str(decisions[-1].get("reason", ""))


def auto(**fields: Any) -> dict[str, Any]:
    scaling = {"mode": "Auto", "minReplicas": 2, "maxReplicas": 6, **fields}
    return manifest(slo=SLO, scaling=scaling)


def replicas_of_ray(namespace: Namespace) -> int:
    """The number that the reconciler has rendered."""
    ray_service = namespace.get("rayservice", "tiny") or {"spec": {"serveConfigV2": ""}}
    text = ray_service["spec"]["serveConfigV2"]
    return int(text.partition("num_replicas: ")[2].split()[0]) if text else 0


def test_a_decision_is_written_rendered_and_told(
    namespace: Namespace, start_operator: StartOperator, figures: Figures
) -> None:
    has_replicas(namespace, figures, 2)
    operator: OperatorProcess = start(start_operator, figures).wait_until_leading()
    namespace.apply(auto())
    until(lambda: last_reason(namespace) == "WithinTargets", "a decision")

    figures.values = OVERLOAD
    until(lambda: scaling(namespace).get("desiredReplicas") == 6, "its maximum")
    until(lambda: replicas_of_ray(namespace) == 6, "the reconciler renders it")
    events = namespace.list("events")
    assert [event["message"] for event in events if event["reason"] == "ScaledUp"]
    assert namespace.has_condition("tiny", "ScalingActive", "ValidMetrics")
    assert namespace.has_condition("tiny", "Accepted", "Valid"), "each writes its own conditions"

    figures.is_away = True
    until(lambda: last_reason(namespace) == "MetricsUnreachable", "it holds and says so")
    figures.is_away, figures.received = False, 1.0
    until(lambda: last_reason(namespace) == "MetricsDisagree", "a lie is seen")
    figures.received = RECEIVED
    until(lambda: namespace.has_condition("tiny", "ScalingActive", "ValidMetrics"), "it goes on")
    assert operator.value("autoscaler_decisions_total") >= 4
    assert operator.samples("autoscaler_hold") == {}


def test_an_operator_that_is_killed_takes_no_step_twice(
    namespace: Namespace, start_operator: StartOperator, figures: Figures
) -> None:
    has_replicas(namespace, figures, 2)
    namespace.apply(auto(maxReplicas=8))
    figures.values = OVERLOAD
    for number in range(4):
        before = figures.queries
        operator = start(start_operator, figures, f"operator-{number}")
        until(lambda: figures.queries > before, "a query")  # noqa: B023
        time.sleep(0.02 * number)
        operator.kill()

    start(start_operator, figures, "last").wait_until_leading()
    until(lambda: scaling(namespace).get("desiredReplicas") == 8, "all that the load needs")

    decisions = scaling(namespace)["decisions"]
    grown = [decision for decision in decisions if decision["reason"] == "PredictedOverload"]
    assert [(one["inputs"]["current"], one["replicas"]) for one in grown] == [(2, 6), (6, 8)]
    apart_s = to_unix_s(grown[1]["firstTime"]) - to_unix_s(grown[0]["firstTime"])
    assert apart_s > 29, "four at most within the window, whichever process took them"


def test_a_decision_on_another_version_is_a_conflict(namespace: Namespace) -> None:
    """What the autoscaler relies on: the API server compares the resourceVersion of an apply."""
    namespace.apply(manifest())
    found = namespace.get("isvc", "tiny")
    assert found
    namespace.kubectl("annotate", "isvc", "tiny", "a=b")

    async def write() -> None:
        connection = await connect(None)
        kube = KubeClient.connect(connection, lambda *_: None)
        kept = ("name", "namespace", "uid", "resourceVersion")
        document = {
            **{name: found[name] for name in ("apiVersion", "kind")},
            "metadata": {name: found["metadata"][name] for name in kept},
            "status": {"scaling": {"desiredReplicas": 9}},
        }
        try:
            with pytest.raises(Conflict):
                await kube.apply_status(INFERENCE_SERVICE, document, manager=names.AUTOSCALER)
            with pytest.raises(Conflict):
                await kube.scale(
                    INFERENCE_SERVICE,
                    NamespacedName(namespace.name, "tiny"),
                    9,
                    version=found["metadata"]["resourceVersion"],
                    manager=names.AUTOSCALER,
                )
        finally:
            await kube.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", namespace.cluster.environment["KUBECONFIG"])
        asyncio.run(write())
    assert scaling(namespace) == {}


def test_modes_hand_over_without_a_jump(
    namespace: Namespace, start_operator: StartOperator, figures: Figures
) -> None:
    has_replicas(namespace, figures, 2)
    start(start_operator, figures).wait_until_leading()
    namespace.apply(auto(replicas=2))
    figures.values = OVERLOAD
    until(lambda: scaling(namespace).get("desiredReplicas") == 6, "the autoscaler's number")

    namespace.patch("isvc", "tiny", {"spec": {"scaling": {"mode": "Manual"}}})
    until(lambda: scaling(namespace).get("mode") == "Manual", "the operator has handed over")
    spec = (namespace.get("isvc", "tiny") or {})["spec"]
    assert spec["scaling"]["replicas"] == 6
    assert replicas_of_ray(namespace) == 6

    namespace.kubectl("scale", "isvc", "tiny", "--replicas=3")
    until(lambda: scaling(namespace)["desiredReplicas"] == 3, "kubectl scale is followed")
    until(lambda: replicas_of_ray(namespace) == 3, "and rendered")


def test_an_hpa_can_begin(
    namespace: Namespace, start_operator: StartOperator, figures: Figures
) -> None:
    """Without a number in the spec the API server refuses to read the scale subresource."""
    start(start_operator, figures).wait_until_leading()
    namespace.apply(manifest(scaling={"mode": "External", "minReplicas": 2}))
    path = f"/apis/serving.tandem.dev/v1alpha1/namespaces/{namespace.name}"
    until(lambda: scaling(namespace).get("mode") == "External", "it has a number")

    scale = json.loads(namespace.kubectl("get", "--raw", f"{path}/inferenceservices/tiny/scale"))
    assert scale["spec"]["replicas"] == 2
    assert "serving.tandem.dev/service=tiny" in scale["status"]["selector"]
