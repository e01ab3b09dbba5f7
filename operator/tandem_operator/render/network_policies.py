"""The NetworkPolicies of a service's pods; pure."""

from collections.abc import Iterable
from typing import Any, Final

from tandem_operator.k8s import names
from tandem_operator.render.head_store import store_of
from tandem_operator.render.settings import OperatorSettings, Peer
from tandem_serve.api.spec import InferenceService

_NAME_SERVER_PORTS: Final = (53, 5353)
"""A policy sees the port of the pod behind a Service: OpenShift's name servers have the second."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def worker_policy(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the NetworkPolicy of the replicas: requests, metrics, and Ray's own traffic.

    They connect to pods of their own service, and send traces. What a checkpoint, a template or a
    library brings along finds no way out.
    """
    access = settings.access
    return _network_policy(
        service,
        names.WORKER,
        ingress=[
            *_from(access.clients, names.SERVE_PORT),
            *_from(access.prometheus, names.METRICS_PORT, names.REPLICA_METRICS_PORT),
            # The autoscaler compares Prometheus with what the replicas show themselves.
            *_from(access.operator, names.REPLICA_METRICS_PORT),
        ],
        egress=[*_to(access.destinations), *_to_any(*_trace_ports(service))],
    )


def head_policy(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the NetworkPolicy of the Ray head: dashboard for the two operators, metrics, Ray.

    A client of the GCS or of Ray's client port that has the token can run any code on the replicas.
    The head of a service that may be without replicas answers clients too. KubeRay asks for its
    health, and the autoscaler for the requests that it has refused. Ray's autoscaler connects to
    the Kubernetes API, and Ray's control plane to its store.
    """
    access = settings.access
    at_zero = [
        *_from([*access.clients, *access.kuberay], names.SERVE_PORT),
        *_from(access.operator, names.PROXY_METRICS_PORT),
    ]
    return _network_policy(
        service,
        names.HEAD,
        ingress=[
            *_from([*access.kuberay, *access.operator], names.DASHBOARD_PORT),
            *_from(access.prometheus, names.METRICS_PORT),
            *(at_zero if service.spec.scaling.allows_zero else ()),
        ],
        egress=[
            *_to(access.destinations),
            *_to_any(*access.api_server_ports, *_store_ports(service, settings)),
        ],
    )


def _network_policy(
    service: InferenceService,
    component: str,
    *,
    ingress: list[dict[str, Any]],
    egress: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a policy that opens both, name servers, and all traffic within the service.

    The kubelet's probes come from the pod's own node, which is always let in, and it is the kubelet
    that mounts volumes.
    """
    own = [{"podSelector": {"matchLabels": {names.SERVICE: service.name}}}]
    name_servers = [
        {"protocol": protocol, "port": port}
        for port in _NAME_SERVER_PORTS
        for protocol in ("UDP", "TCP")
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.network_policy(service.name, component)},
        "spec": {
            "podSelector": {"matchLabels": names.pod_selector(service.name, component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [*ingress, {"from": own}],
            "egress": [*egress, {"ports": name_servers}, {"to": own}],
        },
    }


def _from(peers: Iterable[Peer], *ports: int) -> list[dict[str, Any]]:
    """Return a rule for `peers`; none without peers, since an empty rule allows all clients."""
    named = [peer.manifest() for peer in peers]
    return [{"from": named, "ports": _tcp(ports)}] if named else []


def _to(peers: Iterable[Peer]) -> list[dict[str, Any]]:
    """Return a rule for all ports of `peers`; none without peers."""
    named = [peer.manifest() for peer in peers]
    return [{"to": named}] if named else []


def _to_any(*ports: int) -> list[dict[str, Any]]:
    """Return a rule for ports whose peers are known by name alone, or not at all."""
    return [{"ports": _tcp(sorted({*ports}))}] if ports else []


def _tcp(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _trace_ports(service: InferenceService) -> list[int]:
    tracing = service.spec.observability.tracing
    if tracing is None:
        return []
    # urlsplit refuses addresses in brackets that are none, and a policy needs no address.
    scheme, _, rest = tracing.endpoint.partition("://")
    port = rest.partition("/")[0].rpartition(":")[2]
    return [int(port) if port.isdecimal() else _DEFAULT_PORTS[scheme]]


def _store_ports(service: InferenceService, settings: OperatorSettings) -> list[int]:
    store = store_of(service, settings)
    return [] if store is None else [int(store.redis_address.rpartition(":")[2])]
