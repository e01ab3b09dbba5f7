"""The first thing that blocks a service, and what to do about it; pure.

Each finder recognizes one situation; the first that does decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem_operator import reasons
from tandem_operator.commands.snapshot import ServiceSnapshot
from tandem_operator.commands.text import count_of
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.status.conditions import ConditionType
from tandem_operator.status.document import INSTALL_KUBERAY, NO_KUBERAY
from tandem_operator.status.progress import overdue_message

NOTHING: Final = "Nothing is in the way"

_BLOCKING_REASONS: Final = {
    "FailedScheduling",
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreate",
    "FailedToCreateHeadPod",
    "FailedToCreateWorkerPod",
    "Failed",
    "BackOff",
    "Evicted",
    "OOMKilling",
}
"""Reasons of warnings that keep a pod from running; a single failed probe does not."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A blocker and the way out; neither is a whole sentence yet."""

    text: str
    way_out: str


def find_blocker(snapshot: ServiceSnapshot) -> Blocker:
    """Return the first thing that keeps the service from its desired state."""
    for finder in _FINDERS:
        if blocker := finder(snapshot):
            return _mark_overdue(blocker, snapshot)
    return (
        _deadline_exceeded(snapshot)
        or _replica_missing(snapshot)
        or Blocker(NOTHING, _how_to_chat(snapshot))
    )


def _being_deleted(snapshot: ServiceSnapshot) -> Blocker | None:
    metadata = snapshot.service["metadata"]
    if not is_being_deleted(snapshot.service):
        return None
    if snapshot.pods:
        text = f"{count_of(len(snapshot.pods), 'pod')} may finish requests for up to ten minutes"
    elif finalizers := metadata.get("finalizers"):
        text = f"Kubernetes waits for {', '.join(finalizers)} (metadata.finalizers)"
    else:
        text = NOTHING
    return Blocker(text, f"wait, and watch it: {_kubectl(snapshot, 'get pods')} -w")


def _operator_not_running(snapshot: ServiceSnapshot) -> Blocker | None:
    if not snapshot.is_unobserved:
        return None
    text = (
        f"the operator seems not to run: it has not observed this spec for "
        f"{snapshot.since(snapshot.written_at)}"
    )
    return Blocker(
        text, "check its pods: kubectl get pods -A -l app.kubernetes.io/name=tandem-operator"
    )


def _not_yet_observed(snapshot: ServiceSnapshot) -> Blocker | None:
    if snapshot.observed_generation >= snapshot.generation:
        return None
    return Blocker("waiting for the first reconcile of this spec", _watch(snapshot))


def _unknown(snapshot: ServiceSnapshot) -> Blocker | None:
    if snapshot.condition(ConditionType.READY).get("status") != "Unknown":
        return None
    text = f"the operator cannot observe the service: {snapshot.message(ConditionType.READY)}"
    return Blocker(
        text,
        "read its log: kubectl logs -A -l app.kubernetes.io/name=tandem-operator --prefix",
    )


def _rejected(snapshot: ServiceSnapshot) -> Blocker | None:
    if snapshot.condition(ConditionType.ACCEPTED).get("status") != "False":
        return None
    return Blocker(
        f"the spec is rejected: {snapshot.message(ConditionType.ACCEPTED)}",
        "correct the manifest and apply it again: kubectl apply -f FILE",
    )


def _kuberay_missing(snapshot: ServiceSnapshot) -> Blocker | None:
    if snapshot.reason(ConditionType.RAY_READY) != reasons.KUBERAY_MISSING:
        return None
    return Blocker(NO_KUBERAY, INSTALL_KUBERAY)


def _replica_failed(snapshot: ServiceSnapshot) -> Blocker | None:
    if snapshot.reason(ConditionType.MODEL_LOADED) != reasons.REPLICA_FAILED:
        return None
    log = ""
    if snapshot.workers:
        # While the version before serves on, the newest pod is the one that does not start.
        newest = max(snapshot.workers, key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
        pod = newest["metadata"]["name"]
        log = f"; the replica's log: kubectl exec -n {snapshot.namespace} {pod} -- {_READ_LOG}"
    return Blocker(
        f"a replica does not start: {snapshot.message(ConditionType.MODEL_LOADED)}",
        f"correct the manifest and apply it again: kubectl apply -f FILE{log}",
    )


def _pod_blocked(snapshot: ServiceSnapshot) -> Blocker | None:
    if _is_complete(snapshot):
        return None
    for name, failure in snapshot.blocked_pods():
        return Blocker(failure, _describe(snapshot, name))
    for event in snapshot.warnings():
        if event.reason in _BLOCKING_REASONS:
            about = f"{event.kind} {event.name}: {event.message}"
            times = f", {event.count} times" if event.count > 1 else ""
            text = f"{about} ({event.reason}, {snapshot.since(event.at)} ago{times})"
            return Blocker(text, _describe(snapshot, event.name, kind=event.kind.lower()))
    return None


def _ray_rejected(snapshot: ServiceSnapshot) -> Blocker | None:
    ray = snapshot.condition(ConditionType.RAY_READY)
    if ray.get("status") != "False" or ray.get("reason") not in {
        reasons.KUBERAY_REFUSED,
        reasons.HEAD_FAILED,
    }:
        return None
    way_out = f"kubectl describe rayservice -n {snapshot.namespace} {snapshot.name}"
    return Blocker(str(ray["message"]), f"check KubeRay's conditions: {way_out}")


def _under_way(snapshot: ServiceSnapshot) -> Blocker | None:
    progressing = snapshot.condition(ConditionType.PROGRESSING)
    if progressing.get("status") != "True":
        return None
    return Blocker(f"in progress: {progressing['message']}", _watch(snapshot))


def _deadline_exceeded(snapshot: ServiceSnapshot) -> Blocker | None:
    if snapshot.reason(ConditionType.PROGRESSING) != reasons.DEADLINE_EXCEEDED:
        return None
    message = snapshot.message(ConditionType.PROGRESSING)
    return Blocker(message, f"inspect the pods: {_kubectl(snapshot, 'describe pods')}")


def _replica_missing(snapshot: ServiceSnapshot) -> Blocker | None:
    if _is_complete(snapshot):
        return None
    why = (
        snapshot.message(ConditionType.READY)
        if not snapshot.holds(ConditionType.READY)
        else snapshot.message(ConditionType.MODEL_LOADED)
    )
    return Blocker(why or "a replica is missing", _watch(snapshot))


_FINDERS: Final[tuple[Callable[[ServiceSnapshot], Blocker | None], ...]] = (
    _being_deleted,
    _operator_not_running,
    _not_yet_observed,
    _unknown,
    _rejected,
    _kuberay_missing,
    _replica_failed,
    _pod_blocked,
    _ray_rejected,
    _under_way,
)
_READ_LOG: Final = "sh -c 'tail -n 40 /tmp/ray/session_latest/logs/serve/replica_*'"


def _mark_overdue(blocker: Blocker, snapshot: ServiceSnapshot) -> Blocker:
    if snapshot.reason(ConditionType.PROGRESSING) != reasons.DEADLINE_EXCEEDED:
        return blocker
    return Blocker(overdue_message(snapshot.deadline_s, blocker.text), blocker.way_out)


def _is_complete(snapshot: ServiceSnapshot) -> bool:
    """Return True when the observed state is the desired state."""
    is_over = snapshot.reason(ConditionType.PROGRESSING) == reasons.RECONCILED
    return is_over and snapshot.holds(ConditionType.READY) and snapshot.ready >= snapshot.desired


def _how_to_chat(snapshot: ServiceSnapshot) -> str:
    scaling = snapshot.service["spec"].get("scaling") or {}
    is_at_zero = snapshot.reason(ConditionType.READY) == reasons.SCALED_TO_ZERO
    if is_at_zero and scaling.get("mode") != "Auto":
        return (
            "ask for a replica, for example: "
            f"kubectl scale isvc {snapshot.name} -n {snapshot.namespace} --replicas=1"
        )
    key = " --api-key KEY" if snapshot.needs_api_key else ""
    return (
        f"send a request: kubectl port-forward -n {snapshot.namespace} svc/{snapshot.name} 8000, "
        f"and beside it: tandem chat --url http://localhost:8000{key}"
    )


def _watch(snapshot: ServiceSnapshot) -> str:
    return f"wait, and watch it: kubectl get isvc -n {snapshot.namespace} {snapshot.name} -w"


def _describe(snapshot: ServiceSnapshot, name: str, *, kind: str = "pod") -> str:
    return f"inspect it: kubectl describe {kind} -n {snapshot.namespace} {name}"


def _kubectl(snapshot: ServiceSnapshot, command: str) -> str:
    return f"kubectl {command} -n {snapshot.namespace} -l {snapshot.selector}"
