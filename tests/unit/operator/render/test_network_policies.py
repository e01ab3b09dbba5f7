"""Clients of each port, one row a port; and the pods that evictions may take."""

from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from tandem_operator.render.settings import OperatorSettings
from tests.unit.operator.render.services import SMALLEST, one, rendered

HERE: Final = "models"
"""The service's namespace."""


@dataclass(frozen=True)
class Caller:
    """A pod that connects."""

    labels: dict[str, str]
    namespace: str = "elsewhere"


OWN = Caller({"serving.tandem.dev/service": "tiny"})
OTHER = Caller({"serving.tandem.dev/service": "other"})
KUBERAY = Caller({"app.kubernetes.io/component": "kuberay-operator"}, "kuberay-system")
OPERATOR = Caller({"app.kubernetes.io/name": "tandem-operator"}, "tandem-system")
PROMETHEUS = Caller({"app.kubernetes.io/name": "prometheus"}, "monitoring")
STRANGER = Caller({"app": "anything"})
REPLICA = 9464
SERVE, METRICS, DASHBOARD, GCS, CLIENT, AGENT, HAPROXY = 8000, 8080, 8265, 6379, 10001, 52365, 9101


def may_connect(policy: Any, caller: Caller, port: int) -> bool:
    """Kubernetes' rule: any rule that names the peer and the port lets it in."""
    return any(
        _names_port(rule, port) and any(_names_pod(peer, caller) for peer in rule["from"])
        for rule in policy["spec"]["ingress"]
    )


def _names_port(rule: Any, port: int) -> bool:
    return "ports" not in rule or any(entry["port"] == port for entry in rule["ports"])


def _names_pod(peer: Any, caller: Caller) -> bool:
    assert peer.keys() <= {"namespaceSelector", "podSelector"}
    here = {"matchLabels": {"kubernetes.io/metadata.name": HERE}}
    namespaces = peer.get("namespaceSelector", here).get("matchLabels", {})
    pods = peer.get("podSelector", {}).get("matchLabels", {})
    in_namespace = namespaces.items() <= {"kubernetes.io/metadata.name": caller.namespace}.items()
    return in_namespace and bool(pods.items() <= caller.labels.items())


@pytest.mark.parametrize(
    ("component", "caller", "port", "let_in"),
    [
        ("worker", STRANGER, SERVE, True),
        ("worker", STRANGER, METRICS, False),
        ("worker", STRANGER, REPLICA, False),
        ("worker", STRANGER, AGENT, False),
        ("worker", STRANGER, HAPROXY, False),
        ("worker", STRANGER, 30000, False),
        ("worker", PROMETHEUS, METRICS, True),
        ("worker", PROMETHEUS, REPLICA, True),
        ("worker", PROMETHEUS, AGENT, False),
        ("worker", KUBERAY, AGENT, False),
        ("worker", OPERATOR, METRICS, False),
        ("worker", OPERATOR, REPLICA, True),
        ("head", STRANGER, SERVE, False),
        ("head", STRANGER, DASHBOARD, False),
        ("head", STRANGER, GCS, False),
        ("head", STRANGER, CLIENT, False),
        ("head", STRANGER, METRICS, False),
        ("head", KUBERAY, DASHBOARD, True),
        ("head", KUBERAY, GCS, False),
        ("head", KUBERAY, CLIENT, False),
        ("head", OPERATOR, DASHBOARD, True),
        ("head", OPERATOR, GCS, False),
        ("head", PROMETHEUS, METRICS, True),
        ("head", PROMETHEUS, REPLICA, False),
        ("head", PROMETHEUS, DASHBOARD, False),
    ],
)
def test_a_door(component: str, caller: Caller, port: int, *, let_in: bool) -> None:
    policy = one(rendered(), "NetworkPolicy", f"tiny-{component}")

    assert may_connect(policy, caller, port) == let_in


@pytest.mark.parametrize(
    "caller", [KUBERAY, OPERATOR, PROMETHEUS], ids=["KubeRay", "operator", "Prometheus"]
)
@pytest.mark.parametrize("namespace", [HERE, "elsewhere"])
@pytest.mark.parametrize("port", [METRICS, REPLICA, DASHBOARD, HAPROXY])
def test_a_label_alone_opens_no_door(caller: Caller, namespace: str, port: int) -> None:
    pretender = replace(caller, namespace=namespace)

    for policy in rendered({"scaling": {"minReplicas": 0}}).objects:
        if policy["kind"] == "NetworkPolicy":
            assert not may_connect(policy, pretender, port)


@pytest.mark.parametrize("component", ["head", "worker"])
@pytest.mark.parametrize("port", [SERVE, METRICS, DASHBOARD, GCS, CLIENT, AGENT, 30000])
def test_the_pods_of_one_service_reach_each_other(component: str, port: int) -> None:
    policy = one(rendered(), "NetworkPolicy", f"tiny-{component}")

    assert may_connect(policy, replace(OWN, namespace=HERE), port)
    # The same label in another namespace is another service.
    assert may_connect(policy, OWN, port) == (component == "worker" and port == SERVE)


@pytest.mark.parametrize("port", [GCS, DASHBOARD, CLIENT, 8500])
def test_another_service_of_the_namespace_stays_outside(port: int) -> None:
    for component in ("head", "worker"):
        policy = one(rendered(), "NetworkPolicy", f"tiny-{component}")
        assert not may_connect(policy, replace(OTHER, namespace=HERE), port)


@pytest.mark.parametrize("component", ["head", "worker"])
def test_a_policy_is_about_the_pods_of_its_kind(component: str) -> None:
    spec = one(rendered(), "NetworkPolicy", f"tiny-{component}")["spec"]

    assert spec["podSelector"]["matchLabels"] == {
        "serving.tandem.dev/service": "tiny",
        "app.kubernetes.io/component": component,
    }
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_an_empty_list_of_peers_lets_no_peer_in() -> None:
    settings = OperatorSettings.model_validate(
        {
            "allow_host_path": True,
            "replica": {"image": "i"},
            "access": {"clients": [], "prometheus": []},
        }
    )

    policy = one(rendered(under=settings), "NetworkPolicy", "tiny-worker")

    assert not may_connect(policy, STRANGER, SERVE)
    assert not may_connect(policy, PROMETHEUS, METRICS)
    assert not may_connect(policy, PROMETHEUS, REPLICA)
    assert all(rule["from"] for rule in policy["spec"]["ingress"])


def may_leave(policy: Any, peer: Caller, port: int, protocol: str = "TCP") -> bool:
    return any(
        _opens(rule, port, protocol)
        and ("to" not in rule or any(_names_pod(named, peer) for named in rule["to"]))
        for rule in policy["spec"]["egress"]
    )


def _opens(rule: Any, port: int, protocol: str) -> bool:
    ports = rule.get("ports", [{"protocol": protocol, "port": port}])
    return {"protocol": protocol, "port": port} in ports


TRACED: Final = {"observability": {"tracing": {"endpoint": "http://collector.obs.svc:4318"}}}
STORED: Final = {
    "runtime": {"gcsFaultToleranceOptions": {"redisAddress": "redis://store.redis.svc:6380"}}
}
API, TRACES, STORE = 6443, 4318, 6380


@pytest.mark.parametrize(
    ("component", "spec", "port", "let_out"),
    [
        ("worker", SMALLEST, 443, False),
        ("worker", SMALLEST, API, False),
        ("worker", SMALLEST, TRACES, False),
        ("worker", TRACED, TRACES, True),
        ("worker", TRACED, 80, False),
        ("worker", STORED, STORE, False),
        ("head", SMALLEST, 443, True),
        ("head", SMALLEST, API, True),
        ("head", SMALLEST, 80, False),
        ("head", SMALLEST, 6379, False),
        ("head", TRACED, TRACES, False),
        ("head", STORED, STORE, True),
    ],
)
def test_a_way_out(component: str, spec: dict[str, Any], port: int, *, let_out: bool) -> None:
    policy = one(rendered(spec), "NetworkPolicy", f"tiny-{component}")

    assert may_leave(policy, STRANGER, port) is let_out
    assert not may_leave(policy, STRANGER, port, "UDP")


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://a", 80),
        ("https://a/x", 443),
        ("http://a:4318/x", 4318),
        ("https://[::1]", 443),
        ("https://[::1]:4317", 4317),
        ("http://[.]:4317", 4317),
    ],
)
def test_traces_go_out_by_the_port_of_their_url(endpoint: str, port: int) -> None:
    spec = {"observability": {"tracing": {"endpoint": endpoint}}}

    assert may_leave(one(rendered(spec), "NetworkPolicy", "tiny-worker"), STRANGER, port)


@pytest.mark.parametrize("component", ["head", "worker"])
def test_names_and_the_own_pods_are_always_within_reach(component: str) -> None:
    policy = one(rendered(), "NetworkPolicy", f"tiny-{component}")

    for port in (53, 5353):
        assert may_leave(policy, STRANGER, port, "UDP")
        assert may_leave(policy, STRANGER, port, "TCP")
    for port in (GCS, SERVE, 30000):
        assert may_leave(policy, replace(OWN, namespace=HERE), port)
        assert not may_leave(policy, OWN, port)
        assert not may_leave(policy, replace(OTHER, namespace=HERE), port)


@pytest.mark.parametrize("component", ["head", "worker"])
def test_the_settings_name_further_destinations_and_the_ports_of_the_api(component: str) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}]
    settings = OperatorSettings.model_validate(
        {
            "allowHostPath": True,
            "replica": {"image": "registry.test/replica:1"},
            "access": {"destinations": peers, "apiServerPorts": [8443]},
        },
        by_alias=True,
    )

    policy = one(rendered(under=settings), "NetworkPolicy", f"tiny-{component}")

    assert may_leave(policy, STRANGER, 80)
    assert not may_leave(policy, replace(STRANGER, namespace="third"), 80)
    is_head = component == "head"
    assert may_leave(policy, replace(STRANGER, namespace="third"), 8443) is is_head
    assert not may_leave(policy, replace(STRANGER, namespace="third"), API)


@pytest.mark.parametrize(("replicas", "available"), [(1, 0), (2, 1), (4, 3)])
def test_an_eviction_takes_one_replica_at_a_time(replicas: int, available: int) -> None:
    budget = one(rendered({"scaling": {"minReplicas": replicas}}), "PodDisruptionBudget")

    assert budget["spec"]["minAvailable"] == available
    assert budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"


@pytest.mark.parametrize(
    ("caller", "port", "let_in"),
    [
        (STRANGER, SERVE, True),
        (KUBERAY, SERVE, True),
        (OPERATOR, HAPROXY, True),
        (STRANGER, HAPROXY, False),
        (PROMETHEUS, HAPROXY, False),
        (STRANGER, DASHBOARD, False),
        (STRANGER, GCS, False),
    ],
)
def test_the_head_of_a_service_that_may_be_without_replicas_answers_clients(
    caller: Caller, port: int, *, let_in: bool
) -> None:
    policies = [
        policy
        for policy in rendered({"scaling": {"minReplicas": 0}}).objects
        if policy["metadata"]["name"] == "tiny-head"
    ]

    assert may_connect(policies[0], caller, port) is let_in
