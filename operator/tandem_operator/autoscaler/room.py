"""Further replicas that the nodes can hold: arithmetic over requests, taints and labels; pure.

It looks at what decides about most replicas: CPU, memory, cards, number of pods, nodeSelector,
taints. Affinities and topology are left to the scheduler, so the number is an upper bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import msgspec

from tandem_operator.status.conditions import find_condition
from tandem_serve.api.quantity import parse_quantity

PODS: Final = "pods"
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_KEEPS_OUT: Final = frozenset({"NoSchedule", "NoExecute"})

Amounts = Mapping[str, Fraction]
"""Resource → amount."""


class _Resources(msgspec.Struct):
    requests: dict[str, str | int] = {}


class _Container(msgspec.Struct):
    resources: _Resources = msgspec.field(default_factory=_Resources)
    restart_policy: str = msgspec.field(name="restartPolicy", default="")


class _PodSpec(msgspec.Struct):
    containers: list[_Container] = []
    init_containers: list[_Container] = msgspec.field(name="initContainers", default_factory=list)
    node_name: str = msgspec.field(name="nodeName", default="")
    overhead: dict[str, str | int] = {}


class _PodStatus(msgspec.Struct):
    phase: str = ""


class PlacedPod(msgspec.Struct):
    """A pod, as far as it takes room."""

    spec: _PodSpec
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node with what is left of it."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    free: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShape:
    """What one replica's pod asks of a node."""

    requests: Amounts
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """Further replicas that fit, and the reason why not more do."""

    replicas: int
    message: str


def nodes_with_room(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[PlacedPod]
) -> tuple[Node, ...]:
    """Return the nodes that take pods, each with what the pods on it leave."""
    taken: dict[str, dict[str, Fraction]] = {}
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in _ENDED:
            _add(taken.setdefault(pod.spec.node_name, {}), _requests_of(pod.spec))
    return tuple(
        _node(node, taken.get(node["metadata"]["name"], {})) for node in nodes if _takes_pods(node)
    )


def replica_shape(template: Mapping[str, Any]) -> ReplicaShape:
    """Return what the pod template of a replica asks of a node."""
    spec = template["spec"]
    requests = _requests_of(msgspec.convert(spec, _PodSpec))
    return ReplicaShape(
        requests={**requests, PODS: Fraction(1)},
        node_selector=spec.get("nodeSelector", {}),
        tolerations=spec.get("tolerations", ()),
    )


def room_for(shape: ReplicaShape, nodes: Sequence[Node], unplaced: int = 0) -> Room:
    """Return the further replicas that `nodes` can hold.

    `unplaced` replicas are asked for and have no node yet: they take their room first.
    """
    chosen = [node for node in nodes if _may_run_on(node, shape)]
    fits = sum(_fits(node.free, shape.requests) for node in chosen)
    replicas = max(fits - unplaced, 0)
    if replicas:
        return Room(replicas, f"the nodes can hold {replicas} more")
    if not chosen:
        text = (
            f"none of the {len(nodes)} nodes has the labels and taints that a replica can run with"
        )
        return Room(0, text)
    waiting = f"{unplaced} replicas wait for a node already; " if unplaced else ""
    return Room(0, f"{waiting}{_missing(shape, chosen)}")


def _missing(shape: ReplicaShape, nodes: Sequence[Node]) -> str:
    """Return what is missing on the node that lacks least."""
    short = {node.name: _short(node.free, shape.requests) for node in nodes}
    best = min(short, key=lambda name: (len(short[name]), name))
    free = next(node.free for node in nodes if node.name == best)
    parts = (
        f"{_text(name, free.get(name, Fraction()))} of the "
        f"{_text(name, shape.requests[name])} {name} that a replica requests"
        for name in short[best]
    )
    listed = ", ".join(parts) or "nothing beyond those"
    return f"of {len(nodes)} nodes that a replica may run on, '{best}' has most room: {listed}"


def _short(free: Amounts, requests: Amounts) -> list[str]:
    return sorted(name for name, amount in requests.items() if amount > free.get(name, Fraction()))


def _fits(free: Amounts, requests: Amounts) -> int:
    counts = (
        free.get(name, Fraction()) // amount for name, amount in requests.items() if amount > 0
    )
    return max(min(counts, default=0), 0)


def _may_run_on(node: Node, shape: ReplicaShape) -> bool:
    has_labels = all(node.labels.get(name) == value for name, value in shape.node_selector.items())
    return has_labels and all(
        any(_tolerates(toleration, taint) for toleration in shape.tolerations)
        for taint in node.taints
        if taint.get("effect") in _KEEPS_OUT
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in {None, "", taint.get("effect")}:
        return False
    key, is_any = toleration.get("key"), toleration.get("operator") == "Exists"
    if not key:
        return is_any
    if key != taint.get("key"):
        return False
    return is_any or (toleration.get("value") or "") == (taint.get("value") or "")


def _takes_pods(node: Mapping[str, Any]) -> bool:
    ready = find_condition(node.get("status", {}), "Ready").get("status") == "True"
    return ready and not node.get("spec", {}).get("unschedulable")


def _node(node: Mapping[str, Any], taken: Amounts) -> Node:
    free = _amounts(node.get("status", {}).get("allocatable", {}))
    for name, amount in taken.items():
        free[name] = free.get(name, Fraction()) - amount
    return Node(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        taints=node.get("spec", {}).get("taints") or (),
        free=free,
    )


def _requests_of(spec: _PodSpec) -> dict[str, Fraction]:
    """Return the effective requests of a pod, as the scheduler counts them."""
    total: dict[str, Fraction] = {PODS: Fraction(1)}
    for container in spec.containers:
        _add(total, _amounts(container.resources.requests))
    first: dict[str, Fraction] = {}
    for container in spec.init_containers:
        requests = _amounts(container.resources.requests)
        if container.restart_policy == "Always":
            # A sidecar: it runs beside the containers.
            _add(total, requests)
        for name, amount in requests.items():
            first[name] = max(first.get(name, amount), amount)
    for name, amount in first.items():
        total[name] = max(total.get(name, amount), amount)
    _add(total, _amounts(spec.overhead))
    return total


def _amounts(texts: Mapping[str, str | int]) -> dict[str, Fraction]:
    amounts = ((name, parse_quantity(str(text))) for name, text in texts.items())
    return {name: amount for name, amount in amounts if amount is not None}


def _add(total: dict[str, Fraction], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction()) + amount


def _text(name: str, amount: Fraction) -> str:
    if name == "memory":
        return f"{float(amount) / 2**30:.1f} GiB"
    return f"{float(amount):g}"
