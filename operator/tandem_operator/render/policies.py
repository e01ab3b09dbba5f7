"""Who may connect to a service's pods, and how many of them may leave at once; pure."""

from collections.abc import Iterable
from typing import Any

from tandem_operator import names
from tandem_operator.render.settings import OperatorSettings, Peer
from tandem_serve.api.spec import InferenceService


def worker_policy(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """The NetworkPolicy of the replicas: clients' requests, metrics, and Ray among its own."""
    access = settings.access
    return _network_policy(
        service,
        names.WORKER,
        [
            *_from(access.clients, names.SERVE_PORT),
            *_from(access.prometheus, names.METRICS_PORT),
        ],
    )


def head_policy(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """The NetworkPolicy of the Ray head: the dashboard for the two operators, metrics, its own.

    Whoever reaches the GCS or Ray's client port, and has the token, runs any code on the replicas.
    """
    access = settings.access
    return _network_policy(
        service,
        names.HEAD,
        [
            *_from([*access.kuberay, *access.operator], names.DASHBOARD_PORT),
            *_from(access.prometheus, names.METRICS_PORT),
        ],
    )


def disruption_budget(service: InferenceService) -> dict[str, Any]:
    """The PodDisruptionBudget of the replicas: evictions take one at a time.

    `maxUnavailable: 1` would say just that, but Kubernetes works it out from the owner's scale,
    and a RayCluster has none: it then allows no eviction at all.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": names.disruption_budget(service.name)},
        "spec": {
            "minAvailable": service.spec.scaling.min_replicas - 1,
            "selector": {"matchLabels": _pods(service, names.WORKER)},
        },
    }


def _network_policy(
    service: InferenceService, component: str, rules: list[dict[str, Any]]
) -> dict[str, Any]:
    """A policy that lets in `rules`, and all of Ray's traffic between pods of the same service.

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
            "podSelector": {"matchLabels": _pods(service, component)},
            "policyTypes": ["Ingress"],
            "ingress": [*rules, own],
        },
    }


def _from(peers: Iterable[Peer], port: int) -> list[dict[str, Any]]:
    """A rule for `peers`; none when there are none, since a rule without them lets everybody in."""
    named = [peer.manifest() for peer in peers]
    return [{"from": named, "ports": [{"protocol": "TCP", "port": port}]}] if named else []


def _pods(service: InferenceService, component: str) -> dict[str, str]:
    return {names.SERVICE: service.name, names.COMPONENT: component}
