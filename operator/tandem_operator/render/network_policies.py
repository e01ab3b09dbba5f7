"""The NetworkPolicies of a service's pods; pure."""

from collections.abc import Iterable
from typing import Any

from tandem_operator.k8s import names
from tandem_operator.render.settings import OperatorSettings, Peer
from tandem_serve.api.spec import InferenceService


def worker_policy(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the NetworkPolicy of the replicas: requests, metrics, and Ray's own traffic."""
    access = settings.access
    return _network_policy(
        service,
        names.WORKER,
        [
            *_from(access.clients, names.SERVE_PORT),
            *_from(access.prometheus, names.METRICS_PORT, names.REPLICA_METRICS_PORT),
            # The autoscaler compares Prometheus with what the replicas show themselves.
            *_from(access.operator, names.REPLICA_METRICS_PORT),
        ],
    )


def head_policy(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the NetworkPolicy of the Ray head: dashboard for the two operators, metrics, Ray.

    A client of the GCS or of Ray's client port that has the token can run any code on the replicas.
    The head of a service that may be without replicas answers clients too. KubeRay asks for its
    health, and the autoscaler for the requests that it has refused.
    """
    access = settings.access
    at_zero = [
        *_from([*access.clients, *access.kuberay], names.SERVE_PORT),
        *_from(access.operator, names.PROXY_METRICS_PORT),
    ]
    return _network_policy(
        service,
        names.HEAD,
        [
            *_from([*access.kuberay, *access.operator], names.DASHBOARD_PORT),
            *_from(access.prometheus, names.METRICS_PORT),
            *(at_zero if service.spec.scaling.allows_zero else ()),
        ],
    )


def _network_policy(
    service: InferenceService, component: str, rules: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a policy that lets in `rules`, and all traffic between pods of the same service.

    The kubelet's probes come from the pod's own node, which is always let in. What pods connect to
    is left open: storage of weights, name servers and the Kubernetes API (for Ray's autoscaler) are
    elsewhere in every cluster, and a wrong guess would stop a service rather than guard it.
    """
    own = {"from": [{"podSelector": {"matchLabels": {names.SERVICE: service.name}}}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.network_policy(service.name, component)},
        "spec": {
            "podSelector": {"matchLabels": names.pod_selector(service.name, component)},
            "policyTypes": ["Ingress"],
            "ingress": [*rules, own],
        },
    }


def _from(peers: Iterable[Peer], *ports: int) -> list[dict[str, Any]]:
    """Return a rule for `peers`; none without peers, since an empty rule allows all clients."""
    named = [peer.manifest() for peer in peers]
    opened = [{"protocol": "TCP", "port": port} for port in ports]
    return [{"from": named, "ports": opened}] if named else []
