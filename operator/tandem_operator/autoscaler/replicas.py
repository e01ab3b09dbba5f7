"""The replicas of a service as its pods show them, and the metrics that they have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_operator.bounded_get import Limits, NoAnswer, get, url_host
from tandem_operator.clock import to_unix_s
from tandem_operator.k8s import names
from tandem_operator.k8s.owners import is_being_deleted, ray_cluster_of
from tandem_operator.status.conditions import find_condition

REPLICA_ADDRESS: Final = f"http://{{ip}}:{names.REPLICA_METRICS_PORT}/metrics"
"""Address of a replica's own metrics."""

_LIMITS: Final = Limits(max_bytes=2**20, timeout_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPod:
    """One worker pod, which has one replica. Moments are Unix time."""

    name: str
    uid: str
    ip: str | None
    created_at: float
    ready_at: float | None
    """The moment since which it answers; None: it does not."""

    has_node: bool
    silent_since: float | None = None
    """The moment of its creation, or of its last answer; None: it answers."""

    def is_fresh(self, now: float, fresh_s: float) -> bool:
        """Return True when it answers since less than `fresh_s` seconds."""
        return self.ready_at is not None and now - self.ready_at < fresh_s

    def is_overdue(self, now: float, credit_s: float) -> bool:
        """Return True when it has not answered for longer than `credit_s` seconds."""
        return self.silent_since is not None and now - self.silent_since > credit_s

    @property
    def cold_start_s(self) -> float | None:
        """Seconds from its creation to its first answers; None: it does not answer."""
        return None if self.ready_at is None else max(self.ready_at - self.created_at, 0.0)


def replica_pods(
    pods: Iterable[Mapping[str, Any]], ray_service: Mapping[str, Any] | None
) -> tuple[ReplicaPod, ...]:
    """Return the replicas of the Ray cluster that serves; while none does, those of all."""
    workers = [pod for pod in pods if _is_replica(pod)]
    active = active_cluster(ray_service)
    serving = [pod for pod in workers if ray_cluster_of(pod) == active]
    return tuple(_replica_pod(pod) for pod in serving or workers)


async def read_replica(address: str, pod: ReplicaPod) -> bytes | None:
    """Return the metrics of a replica; None: it cannot be read in time.

    Args:
        address: May contain {ip} and {pod}.
        pod: Its pod.
    """
    if not pod.ip:
        return None
    try:
        return await get(address.format(ip=url_host(pod.ip), pod=pod.name), _LIMITS)
    except NoAnswer:
        return None


def _is_replica(pod: Mapping[str, Any]) -> bool:
    is_worker = pod["metadata"].get("labels", {}).get(names.COMPONENT) == names.WORKER
    has_ended = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    is_rays = ray_cluster_of(pod) is not None
    return is_worker and is_rays and not has_ended and not is_being_deleted(pod)


def active_cluster(ray_service: Mapping[str, Any] | None) -> str | None:
    """Return the name of the Ray cluster that serves; None: none does."""
    status = (ray_service or {}).get("status") or {}
    name: str | None = (status.get("activeServiceStatus") or {}).get("rayClusterName")
    return name or None


def _replica_pod(pod: Mapping[str, Any]) -> ReplicaPod:
    metadata, status = pod["metadata"], pod.get("status", {})
    ready = find_condition(status, "Ready")
    is_ready = ready.get("status") == "True"
    since = ready.get("lastTransitionTime") or metadata["creationTimestamp"]
    return ReplicaPod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP"),
        created_at=to_unix_s(metadata["creationTimestamp"]),
        ready_at=to_unix_s(since) if is_ready else None,
        has_node=bool(pod["spec"].get("nodeName")),
        silent_since=None if is_ready else to_unix_s(since),
    )
