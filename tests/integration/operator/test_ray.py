"""Ray's answers about a service reach its status, and only with the token.

Ray and KubeRay are stand-ins here: an HTTP server with a recorded answer, and statuses that the
test writes. The real ones are in tests/e2e/kubernetes.
"""

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import Namespace, OperatorProcess, manifest, settle, until
from tests.integration.operator.ray_clusters import CLUSTER, controlled_by, make_cluster
from tests.patience import HANG_S
from tests.unit.operator.samples import CAUSE, TRACEBACK, answer
from tools.cluster import ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class FakeRay(ThreadingHTTPServer):
    """Answers like Ray's dashboard, to who has the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: dict[str, Any] = {}
        self.token = ""
        self.refused = 0
        self.asked = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ray = self.server
        assert isinstance(ray, FakeRay)
        ray.asked += 1
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
def ray() -> Iterator[FakeRay]:
    with FakeRay() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def operator(namespace: Namespace, ray: FakeRay, start_operator: StartOperator) -> OperatorProcess:
    """An operator that asks the stand-in, and a service with a Ray cluster that starts."""
    address = f"http://127.0.0.1:{ray.server_port}"
    operator = start_operator(options=(f"--ray-address={address}",)).wait_until_leading()
    namespace.apply(manifest())
    settle(namespace, operator)
    secret = namespace.get("secret", namespace.token_secret("tiny"))
    assert secret
    ray.token = base64.b64decode(secret["data"]["auth_token"]).decode()
    make_head(namespace)
    say(namespace, pendingServiceStatus={"rayClusterName": CLUSTER})
    return operator


def make_head(namespace: Namespace, name: str = "head", *, is_ours: bool = True) -> None:
    """A pod that stands for the Ray head: no node takes it."""
    ray_service = namespace.get("rayservice", "tiny")
    assert ray_service
    owner = controlled_by(make_cluster(namespace, ray_service)) if is_ours else {}
    make_pod(namespace, name, "head", owner)


def make_pod(
    namespace: Namespace, name: str, node_type: str, owner: Mapping[str, Any] | None = None
) -> None:
    """A pod that is ready, by what the test writes into its status."""
    labels = {
        "serving.tandem.dev/service": "tiny",
        "ray.io/cluster": CLUSTER,
        "ray.io/node-type": node_type,
    }
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, **(owner or {})},
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
    namespace.patch("pod", name, {"status": status}, "--subresource=status")


def say(namespace: Namespace, **status: Any) -> None:
    """Write the status of the RayService as KubeRay would."""
    found = namespace.get("rayservice", "tiny")
    assert found
    seen = {"observedGeneration": found["metadata"]["generation"]}
    namespace.patch("rayservice", "tiny", {"status": seen | status}, "--subresource=status")


def test_a_replicas_own_error_is_in_the_status(
    namespace: Namespace, operator: OperatorProcess, ray: FakeRay
) -> None:
    ray.answer = answer("STARTING", status="DEPLOYING", message=TRACEBACK)

    until(lambda: namespace.has_condition("tiny", "ModelLoaded", "ReplicaFailed"), "it says so")

    assert namespace.condition("tiny", "ModelLoaded")["message"] == CAUSE
    assert namespace.condition("tiny", "Ready")["message"] == CAUSE
    until(lambda: CAUSE in event_messages(namespace), "an Event says so, too")
    assert not ray.refused, "the token was sent"
    assert ray.token not in operator.log.read_text()


def test_a_pod_that_only_wears_the_labels_of_a_head_never_sees_the_token(
    namespace: Namespace, operator: OperatorProcess, ray: FakeRay
) -> None:
    until(lambda: ray.asked, "the head is asked")
    namespace.kubectl("delete", "pod", "head", "--grace-period=0", "--force")
    operator.wait_for_resyncs()
    ray.asked = 0

    make_head(namespace, "collector", is_ours=False)
    operator.wait_for_resyncs(2)

    assert ray.asked == 0


def event_messages(namespace: Namespace) -> set[str]:
    return {one["message"] for one in namespace.list("events")}


def test_a_service_becomes_ready_and_is_reconciled(
    namespace: Namespace, operator: OperatorProcess, ray: FakeRay
) -> None:
    ray.answer = answer("RUNNING")
    say(
        namespace,
        activeServiceStatus={"rayClusterName": CLUSTER},
        pendingServiceStatus=None,
        numServeEndpoints=1,
    )

    until(lambda: namespace.has_condition("tiny", "Progressing", "Reconciled"), "it is reconciled")

    assert namespace.has_condition("tiny", "Ready", "Serving")
    found = namespace.get("isvc", "tiny")
    assert found
    assert found["status"]["replicas"] == {"desired": 1, "ready": 1, "summary": "1/1"}
    assert found["status"]["rayCluster"] == CLUSTER
    assert operator.samples("service_ready").popitem()[1] == 1.0


def test_without_rays_answer_kuberays_digest_serves(
    namespace: Namespace, operator: OperatorProcess, ray: FakeRay
) -> None:
    ray.token = "another"  # noqa: S105  # the operator's is refused from now on
    make_pod(namespace, "worker", "worker")
    say(
        namespace,
        activeServiceStatus={
            "rayClusterName": CLUSTER,
            "applicationStatuses": {"tiny": {"status": "RUNNING"}},
        },
        pendingServiceStatus=None,
        numServeEndpoints=1,
    )

    until(lambda: namespace.has_condition("tiny", "Progressing", "Reconciled"), "it is reconciled")

    assert dict(operator.samples("ray_requests_total"))[("result", "401"),] >= 1
    assert operator.health()["ok"]


def test_kubectl_waits_for_the_new_version_while_the_old_one_serves(
    namespace: Namespace, operator: OperatorProcess, ray: FakeRay
) -> None:
    ray.answer = answer("RUNNING")
    serves = {"activeServiceStatus": {"rayClusterName": CLUSTER}, "numServeEndpoints": 1}
    say(namespace, pendingServiceStatus=None, **serves)
    until(lambda: namespace.has_condition("tiny", "Progressing", "Reconciled"), "it is reconciled")
    wait = ("wait", "--for=condition=Ready", "isvc/tiny")
    namespace.kubectl(*wait, f"--timeout={HANG_S:.0f}s")

    namespace.apply(manifest(engine={"dtype": "float32"}))
    with pytest.raises(ClusterError, match="timed out"):
        namespace.kubectl(*wait, "--timeout=3s")
    say(namespace, pendingServiceStatus={"rayClusterName": "tiny-fghij"}, **serves)

    until(lambda: namespace.has_condition("tiny", "Ready", "ServingPrevious"), "the old one serves")
    assert namespace.condition("tiny", "Ready")["status"] == "True"
    with pytest.raises(ClusterError, match="timed out"):
        namespace.kubectl(*wait, "--timeout=3s")

    say(namespace, pendingServiceStatus=None, **serves)
    namespace.kubectl(*wait, f"--timeout={HANG_S:.0f}s")
    assert operator.health()["ok"]
