"""Clients that may connect to each port, and those that may not: each one is tried."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.faults import DASHBOARD_PORT, ask_on_the_node, head_address
from tests.e2e.kubernetes.harness import NAMESPACE, DeployedService
from tests.tiny import held_out
from tools.cluster import Cluster
from tools.kubernetes import Kubernetes

KEYS = "door-keys"
STRANGERS = "strangers"
TALK = {"model": "tandem-tiny", "messages": held_out(1)[0].messages, "max_tokens": 4}
GCS, METRICS, ENDPOINT, REPLICA, STATISTICS = 6379, 8080, 8000, 30000, 8404
REPLICA_METRICS = 9464
UNUSED = 81
CALLER = "caller"
# Connects, or says why not; a dropped packet is a time-out.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("open")
except TimeoutError:
    print("closed")
except ConnectionRefusedError:
    print("refused")
"""

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


def with_keys(document: dict[str, Any]) -> None:
    document["spec"]["server"] = {"apiKeysSecret": KEYS}


def secret(**keys: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEYS, "namespace": NAMESPACE},
        "stringData": keys,
    }


@pytest.fixture(scope="module")
def service(tandem: Kubernetes) -> Iterator[DeployedService]:
    """A service that asks for a key."""
    service = DeployedService(tandem, "door")
    tandem.apply(secret(first="sk-first"))
    service.apply(with_keys)
    service.wait_ready()
    yield service
    service.delete()
    tandem.kubectl("delete", "secret", KEYS)
    service.wait_gone()


@pytest.fixture(scope="module")
def stranger(tandem: Kubernetes) -> Iterator["Caller"]:
    """A pod in an unknown namespace."""
    yield from a_caller(tandem, STRANGERS, {})


@pytest.fixture(scope="module")
def prometheus(tandem: Kubernetes) -> Iterator["Caller"]:
    """A pod with the labels of Prometheus."""
    yield from a_caller(tandem, "observers", {"app.kubernetes.io/name": "prometheus"})


class Caller:
    """A pod that tries doors."""

    def __init__(
        self, kubernetes: Kubernetes, namespace: str, pod: str = CALLER, container: str = CALLER
    ) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._pod, self._container = pod, container

    @property
    def address(self) -> str:
        pod = ("pod", self._pod, "-n", self._namespace)
        return self._kubernetes.kubectl("get", *pod, "--output=jsonpath={.status.podIP}")

    def tries(self, address: str, port: int) -> str:
        """`open`, `refused` (no process listens there) or `closed`."""
        command = ["python3", "-c", CONNECT, address, str(port)]
        return self._kubernetes.kubectl(
            "exec", "-n", self._namespace, self._pod, "-c", self._container, "--", *command
        ).strip()


def a_caller(tandem: Kubernetes, namespace: str, labels: dict[str, str]) -> Iterator[Caller]:
    tandem.kubectl("create", "namespace", namespace)
    container = {
        "name": CALLER,
        "image": "localhost/tandem/base:1",
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
    }
    tandem.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": CALLER, "namespace": namespace, "labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
    )
    tandem.kubectl(
        "wait", "-n", namespace, "--for=condition=Ready", f"pod/{CALLER}", "--timeout=60s"
    )
    yield Caller(tandem, namespace)
    tandem.kubectl("delete", "namespace", namespace)


def talk(service: DeployedService, authorization: str | None) -> httpx.Response:
    headers = {} if authorization is None else {"Authorization": authorization}
    url = f"{service.url}/v1/chat/completions"
    return httpx.post(url, json=TALK, headers=headers, timeout=60, trust_env=False)


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer", "Bearer sk-wrong", "Bearer sk-firs", "Bearer sk-first2", "Basic sk-first"],
)
def test_a_request_without_a_right_key_is_refused(
    service: DeployedService, authorization: str | None
) -> None:
    refused = talk(service, authorization)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert "sk-first" not in refused.text


def test_a_request_with_the_key_is_answered(service: DeployedService) -> None:
    assert talk(service, "Bearer sk-first").status_code == 200


def test_a_new_key_opens_and_the_old_one_closes_without_a_restart(
    service: DeployedService,
) -> None:
    pods = service.pod_uids()
    service.kubernetes.kubectl("delete", "secret", KEYS)
    service.kubernetes.apply(secret(second="sk-second"))
    wait_for(lambda: talk(service, "Bearer sk-second").status_code == 200, "the new key opens")
    assert talk(service, "Bearer sk-first").status_code == 401
    assert service.pod_uids() == pods
    service.kubernetes.apply(secret(first="sk-first", second="sk-second"))
    wait_for(lambda: talk(service, "Bearer sk-first").status_code == 200, "both keys open")


def test_rays_dashboard_asks_for_the_token(service: DeployedService, cluster: Cluster) -> None:
    # The node itself is let in by every policy, so that what is left is the token.
    applications = f"http://{head_address(service)}:{DASHBOARD_PORT}/api/serve/applications/"
    assert ask_on_the_node(cluster, applications).status == 401
    wrong = ask_on_the_node(cluster, applications, token="wrong")  # noqa: S106
    assert wrong.status in {401, 403}
    assert ask_on_the_node(cluster, applications, token=service.ray_token()).status == 200
    # Jobs are how a stranger would run code.
    jobs = f"http://{head_address(service)}:{DASHBOARD_PORT}/api/jobs/"
    assert ask_on_the_node(cluster, jobs, body='{"entrypoint": "true"}').status == 401


def test_a_stranger_reaches_the_endpoint_and_nothing_else(
    service: DeployedService, stranger: Caller
) -> None:
    head, worker = head_address(service), worker_address(service)
    assert stranger.tries(worker, ENDPOINT) == "open"
    for address, port in (
        (head, DASHBOARD_PORT), (head, GCS), (head, METRICS), (head, ENDPOINT),
        (worker, METRICS), (worker, REPLICA_METRICS), (worker, REPLICA), (worker, STATISTICS),
    ):  # fmt: skip
        assert stranger.tries(address, port) == "closed", f"{address}:{port}"


def test_prometheus_reaches_the_metrics_and_not_the_dashboard(
    service: DeployedService, prometheus: Caller
) -> None:
    head, worker = head_address(service), worker_address(service)
    assert prometheus.tries(worker, METRICS) == "open"
    assert prometheus.tries(worker, REPLICA_METRICS) == "open"
    assert prometheus.tries(head, METRICS) == "open"
    assert prometheus.tries(head, DASHBOARD_PORT) == "closed"


def test_pods_of_a_service_connect_to_their_own_and_to_no_stranger(
    service: DeployedService, stranger: Caller, prometheus: Caller
) -> None:
    kubernetes = service.kubernetes
    assert prometheus.tries(stranger.address, UNUSED) == "refused", "no packet is held up there"
    for component, container in (("head", "ray-head"), ("worker", "ray-worker")):
        pod = service.serving_pods(component)[0]["metadata"]["name"]
        caller = Caller(kubernetes, NAMESPACE, pod, container)
        # By its name: name servers are within reach, too.
        assert caller.tries(f"{service.name}.{NAMESPACE}.svc", ENDPOINT) == "open"
        assert caller.tries(head_address(service), GCS) == "open"
        assert caller.tries(stranger.address, UNUSED) == "closed"


def worker_address(service: DeployedService) -> str:
    address: str = service.pods()[0]["status"]["podIP"]
    return address
