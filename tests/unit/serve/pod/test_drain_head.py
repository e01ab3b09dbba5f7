"""Workers for which a Ray head waits when Kubernetes deletes its RayCluster or its pod."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandem_serve.pod import drain
from tandem_serve.pod.ray_cluster import ClusterDeleted, OwnRayCluster
from tests.unit.serve.pod.test_drain import GONE, HEAD, WORKER, FakeDashboard, serving

TOKEN = "account"  # noqa: S105  # of nothing
CLUSTER = "/apis/ray.io/v1/namespaces/models/rayclusters/tiny-abcde"
PODS = "/api/v1/namespaces/models/pods"
WORKERS = f"{PODS}?labelSelector=ray.io%2Fcluster%3Dtiny-abcde%2Cray.io%2Fnode-type%3Dworker"
LEAVES = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


class FakeKubernetes(ThreadingHTTPServer):
    """One RayCluster and its worker pods; a number is the status of each answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Objects)
        self.cluster: dict[str, Any] | int = {"metadata": {}}
        self.pods: list[dict[str, Any]] = []
        self.requested: list[str] = []

    def own_cluster(self) -> OwnRayCluster:
        return OwnRayCluster(
            api=f"http://127.0.0.1:{self.server_address[1]}",
            namespace="models",
            name="tiny-abcde",
            token=TOKEN,
            authority=None,
        )


class _Objects(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        there = self.server
        assert isinstance(there, FakeKubernetes)
        there.requested.append(self.path)
        answers = {CLUSTER: there.cluster, WORKERS: {"items": there.pods}}
        found = answers.get(self.path, 404)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            found = 401
        body = b"" if isinstance(found, int) else json.dumps(found).encode()
        self.send_response(found if isinstance(found, int) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def kubernetes() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pod(address: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "status": {"podIP": address}}


def polls(ray: FakeDashboard, kubernetes: FakeKubernetes) -> int:
    """Answers of Ray that a head took which would wait for ever, had the answers not ended."""
    before = len(ray.answers)
    drain.drain_head(ray.url, timeout_s=60.0, cluster=kubernetes.own_cluster())
    return before - len(ray.answers)


def test_a_head_that_leaves_alone_waits_for_no_worker(kubernetes: FakeKubernetes) -> None:
    kubernetes.pods = [pod("10.0.0.1"), pod("10.0.0.2")]
    with serving(FakeDashboard([HEAD, WORKER, WORKER], [HEAD])) as ray:
        assert polls(ray, kubernetes) == 1
        assert ray.answers == [[HEAD]]


def test_a_head_waits_for_workers_that_leave_with_it(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.pods = [pod("10.0.0.1", **LEAVES), pod("10.0.0.2")]
    with serving(FakeDashboard([HEAD, WORKER, WORKER], [HEAD, GONE, WORKER], [HEAD])) as ray:
        assert polls(ray, kubernetes) == 2
    assert "for 1 other node(s)" in capsys.readouterr().err


def test_a_pod_that_ray_knows_to_be_dead_delays_no_drain(kubernetes: FakeKubernetes) -> None:
    """A node that is unreachable keeps its pods in deletion, as long as it stays so."""
    kubernetes.pods = [pod("10.0.0.1", **LEAVES)]
    with serving(FakeDashboard([HEAD, GONE, WORKER], [HEAD])) as ray:
        assert polls(ray, kubernetes) == 1
        assert ray.answers == [[HEAD]]


@pytest.mark.parametrize("cluster", [{"metadata": LEAVES}, 404, 403, 401])
def test_a_head_waits_for_every_worker_when_the_whole_cluster_goes(
    kubernetes: FakeKubernetes, cluster: dict[str, Any] | int
) -> None:
    kubernetes.cluster = cluster
    with serving(FakeDashboard([HEAD, WORKER], [HEAD, WORKER], [HEAD])) as ray:
        assert polls(ray, kubernetes) == 2
    assert kubernetes.requested == [CLUSTER], "it does not come back"


def test_a_head_waits_while_kubernetes_does_not_say(kubernetes: FakeKubernetes) -> None:
    kubernetes.cluster = 500
    with serving(FakeDashboard([HEAD, WORKER], [HEAD, WORKER], [HEAD])) as ray:
        assert polls(ray, kubernetes) == 2
    assert kubernetes.requested == [CLUSTER, CLUSTER], "it is requested again"


def test_an_account_that_is_gone_means_a_cluster_that_is_being_deleted(
    kubernetes: FakeKubernetes,
) -> None:
    kubernetes.cluster = 401

    with pytest.raises(ClusterDeleted):
        kubernetes.own_cluster().leaving_workers()


def test_a_pod_finds_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("RAY_CLUSTER_NAME", "tiny-abcde")
    (tmp_path / "namespace").write_text("models")
    assert OwnRayCluster.of_this_pod(tmp_path) is None, "there is no token"
    (tmp_path / "token").write_text("secret-token\n")

    found = OwnRayCluster.of_this_pod(tmp_path)

    assert found == OwnRayCluster(
        api="https://[fd00::1]:443",
        namespace="models",
        name="tiny-abcde",
        token="secret-token",  # noqa: S106
        authority=tmp_path / "ca.crt",
    )
    assert "secret-token" not in repr(found)


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "RAY_CLUSTER_NAME"])
def test_without_kubernetes_there_is_no_cluster_to_ask_for(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "RAY_CLUSTER_NAME"):
        monkeypatch.setenv(name, "1")
    for name in ("namespace", "token"):
        (tmp_path / name).write_text("x")
    monkeypatch.delenv(missing)

    assert OwnRayCluster.of_this_pod(tmp_path) is None
