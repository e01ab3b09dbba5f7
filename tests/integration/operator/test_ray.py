"""What Ray says about a service reaches its status, in words, and with the token alone.

Ray and KubeRay are stand-ins here: an HTTP server with a recorded answer, and statuses that the
test writes. The real ones are in tests/e2e/kubernetes.
"""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import Namespace, OperatorProcess, manifest, settle, until
from tests.unit.operator.scenes import CAUSE, TRACEBACK, answer

pytestmark = pytest.mark.cluster

CLUSTER = "tiny-abcde"


class StandInRay(ThreadingHTTPServer):
    """Answers like Ray's dashboard, to who has the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: dict[str, Any] = {}
        self.token = ""
        self.refused = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ray = self.server
        assert isinstance(ray, StandInRay)
        known = self.headers.get("Authorization") == f"Bearer {ray.token}"
        ray.refused += not known
        body = json.dumps(ray.answer if known else {}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def ray() -> Iterator[StandInRay]:
    with StandInRay() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def operator(
    namespace: Namespace, ray: StandInRay, start_operator: StartOperator
) -> OperatorProcess:
    """An operator that asks the stand-in, and a service with a Ray cluster that starts."""
    address = f"http://127.0.0.1:{ray.server_port}"
    operator = start_operator(options=(f"--ray-address={address}",)).wait_until_leading()
    namespace.apply(manifest())
    settle(namespace, operator)
    secret = namespace.get("secret", "tiny-ray-token")
    assert secret
    ray.token = base64.b64decode(secret["data"]["auth_token"]).decode()
    make_head(namespace)
    say(namespace, pendingServiceStatus={"rayClusterName": CLUSTER})
    return operator


def make_head(namespace: Namespace) -> None:
    """A pod that stands for the Ray head: no node takes it, its status is the test's."""
    labels = {
        "serving.tandem.dev/service": "tiny",
        "ray.io/cluster": CLUSTER,
        "ray.io/node-type": "head",
    }
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "head", "labels": labels},
            "spec": {
                "schedulerName": "nobody",
                "containers": [{"name": "ray-head", "image": "none"}],
            },
        }
    )
    status = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    namespace.patch("pod", "head", {"status": status}, "--subresource=status")


def say(namespace: Namespace, **status: Any) -> None:
    """What KubeRay would write into the status of the RayService."""
    found = namespace.get("rayservice", "tiny")
    assert found
    seen = {"observedGeneration": found["metadata"]["generation"]}
    namespace.patch("rayservice", "tiny", {"status": seen | status}, "--subresource=status")


def test_a_replicas_own_error_is_in_the_status(
    namespace: Namespace, operator: OperatorProcess, ray: StandInRay
) -> None:
    ray.answer = answer("STARTING", status="DEPLOYING", message=TRACEBACK)

    until(lambda: namespace.has_condition("tiny", "ModelLoaded", "ReplicaFailed"), "it says so")

    assert namespace.condition("tiny", "ModelLoaded")["message"] == CAUSE
    assert namespace.condition("tiny", "Ready")["message"] == CAUSE
    until(lambda: CAUSE in event_messages(namespace), "an Event says so, too")
    assert not ray.refused, "the token was sent"
    assert ray.token not in operator.log.read_text()


def event_messages(namespace: Namespace) -> set[str]:
    return {one["message"] for one in namespace.list("events")}


def test_a_service_becomes_ready_and_settles(
    namespace: Namespace, operator: OperatorProcess, ray: StandInRay
) -> None:
    ray.answer = answer("RUNNING")
    say(
        namespace,
        activeServiceStatus={"rayClusterName": CLUSTER},
        pendingServiceStatus=None,
        numServeEndpoints=1,
    )

    until(lambda: namespace.has_condition("tiny", "Progressing", "Settled"), "it settles")

    assert namespace.has_condition("tiny", "Ready", "Serving")
    found = namespace.get("isvc", "tiny")
    assert found
    assert found["status"]["replicas"] == {"wanted": 1, "ready": 1, "summary": "1/1"}
    assert found["status"]["rayCluster"] == CLUSTER
    assert operator.samples("service_ready").popitem()[1] == 1.0


def test_without_rays_answer_kuberays_digest_serves(
    namespace: Namespace, operator: OperatorProcess, ray: StandInRay
) -> None:
    ray.token = "another"  # noqa: S105  # the operator's is refused from now on
    say(
        namespace,
        activeServiceStatus={
            "rayClusterName": CLUSTER,
            "applicationStatuses": {"tiny": {"status": "RUNNING"}},
        },
        pendingServiceStatus=None,
        numServeEndpoints=1,
    )

    until(lambda: namespace.has_condition("tiny", "Progressing", "Settled"), "it settles")

    assert dict(operator.samples("ray_requests_total"))[("result", "401"),] >= 1
    assert operator.health()["ok"]
