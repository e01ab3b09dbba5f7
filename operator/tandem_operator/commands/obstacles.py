"""What is in the way of a service, and what to do about it; pure.

Each finder knows one situation; the first that recognizes its own speaks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem_operator import progress, status
from tandem_operator.commands.scene import Scene
from tandem_operator.commands.words import count_of
from tandem_operator.conditions import ConditionType

NOTHING: Final = "Nothing is in the way"

_TROUBLES: Final = {
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
"""Reasons of warnings that keep a pod from running; a probe that fails once does not."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What is in the way, and what to do; neither is a whole sentence yet."""

    text: str
    way_out: str


def find_obstacle(scene: Scene) -> Obstacle:
    """The first thing that keeps the service from being what is asked for."""
    for finder in _FINDERS:
        if found := finder(scene):
            return _overdue(found, scene)
    return Obstacle(NOTHING, _try_it(scene))


def _being_deleted(scene: Scene) -> Obstacle | None:
    metadata = scene.service["metadata"]
    if "deletionTimestamp" not in metadata:
        return None
    if scene.pods:
        text = f"{count_of(len(scene.pods), 'pod')} may finish requests for up to ten minutes"
    elif finalizers := metadata.get("finalizers"):
        text = f"Kubernetes waits for {', '.join(finalizers)} (metadata.finalizers)"
    else:
        text = NOTHING
    return Obstacle(text, f"wait; it can be watched: {_kubectl(scene, 'get pods')} -w")


def _operator_away(scene: Scene) -> Obstacle | None:
    if not scene.is_overlooked:
        return None
    text = (
        f"the operator seems not to run: it has not looked at the service for "
        f"{scene.since(scene.written_at)}"
    )
    return Obstacle(
        text, "look at it: kubectl get pods -A -l app.kubernetes.io/name=tandem-operator"
    )


def _not_yet_seen(scene: Scene) -> Obstacle | None:
    if scene.seen_generation >= scene.generation:
        return None
    return Obstacle("nothing but time: the operator has not looked at it yet", _watch(scene))


def _unknown(scene: Scene) -> Obstacle | None:
    if scene.condition(ConditionType.READY).get("status") != "Unknown":
        return None
    text = f"the operator cannot look at it: {scene.message(ConditionType.READY)}"
    return Obstacle(
        text,
        "see its log: kubectl logs -A -l app.kubernetes.io/name=tandem-operator --prefix",
    )


def _refused(scene: Scene) -> Obstacle | None:
    if scene.condition(ConditionType.ACCEPTED).get("status") != "False":
        return None
    return Obstacle(
        f"the spec is refused: {scene.message(ConditionType.ACCEPTED)}",
        "correct the manifest and give it again: kubectl apply -f FILE",
    )


def _no_kuberay(scene: Scene) -> Obstacle | None:
    if scene.reason(ConditionType.RAY_READY) != status.KUBERAY_MISSING:
        return None
    text, _, command = scene.message(ConditionType.RAY_READY).partition("; ")
    return Obstacle(text, command or "install KubeRay")


def _replica_failed(scene: Scene) -> Obstacle | None:
    if scene.reason(ConditionType.MODEL_LOADED) != status.REPLICA_FAILED:
        return None
    log = ""
    if scene.workers:
        # While the version before serves on, the newest pod is the one that does not start.
        newest = max(scene.workers, key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
        pod = newest["metadata"]["name"]
        log = f"; the replica's log: kubectl exec -n {scene.namespace} {pod} -- {_READ_LOG}"
    return Obstacle(
        f"a replica does not start: {scene.message(ConditionType.MODEL_LOADED)}",
        f"correct the manifest and give it again: kubectl apply -f FILE{log}",
    )


def _pod_stuck(scene: Scene) -> Obstacle | None:
    if _is_whole(scene):
        return None
    for name, failure in scene.stuck_pods():
        return Obstacle(failure, _describe(scene, name))
    for one in scene.warnings():
        if one.reason in _TROUBLES:
            text = f"{one.about}: {one.message} ({one.reason}, {scene.since(one.at)} ago"
            times = f", {one.count} times" if one.count > 1 else ""
            kind, _, name = one.about.partition(" ")
            return Obstacle(f"{text}{times})", _describe(scene, name, kind=kind.lower()))
    return None


def _ray_refused(scene: Scene) -> Obstacle | None:
    ray = scene.condition(ConditionType.RAY_READY)
    if ray.get("status") != "False" or ray.get("reason") not in {"KubeRayRefused", "HeadFailed"}:
        return None
    way_out = f"kubectl describe rayservice -n {scene.namespace} {scene.name}"
    return Obstacle(str(ray["message"]), f"see what KubeRay says: {way_out}")


def _under_way(scene: Scene) -> Obstacle | None:
    progressing = scene.condition(ConditionType.PROGRESSING)
    if progressing.get("status") != "True":
        return None
    return Obstacle(f"nothing but time: {progressing['message']}", _watch(scene))


def _deadline_exceeded(scene: Scene) -> Obstacle | None:
    if scene.reason(ConditionType.PROGRESSING) != progress.DEADLINE_EXCEEDED:
        return None
    _, _, waits_for = scene.message(ConditionType.PROGRESSING).rpartition("tried further: ")
    return Obstacle(waits_for, f"look at the pods: {_kubectl(scene, 'describe pods')}")


def _replica_missing(scene: Scene) -> Obstacle | None:
    if _is_whole(scene):
        return None
    why = (
        scene.message(ConditionType.READY)
        if not scene.holds(ConditionType.READY)
        else scene.message(ConditionType.MODEL_LOADED)
    )
    return Obstacle(why or "a replica is missing", _watch(scene))


_FINDERS: Final[tuple[Callable[[Scene], Obstacle | None], ...]] = (
    _being_deleted,
    _operator_away,
    _not_yet_seen,
    _unknown,
    _refused,
    _no_kuberay,
    _replica_failed,
    _pod_stuck,
    _ray_refused,
    _under_way,
    _deadline_exceeded,
    _replica_missing,
)
_READ_LOG: Final = "sh -c 'tail -n 40 /tmp/ray/session_latest/logs/serve/replica_*'"


def _overdue(obstacle: Obstacle, scene: Scene) -> Obstacle:
    if scene.reason(ConditionType.PROGRESSING) != progress.DEADLINE_EXCEEDED:
        return obstacle
    late = f"it is late (progressDeadlineSeconds {scene.deadline_s}) and tried further"
    return Obstacle(f"{late}: {obstacle.text}", obstacle.way_out)


def _is_whole(scene: Scene) -> bool:
    """Whether all that is asked for is there."""
    is_over = scene.reason(ConditionType.PROGRESSING) == progress.SETTLED
    return is_over and scene.holds(ConditionType.READY) and scene.ready >= scene.desired


def _try_it(scene: Scene) -> str:
    key = " --api-key KEY" if scene.wants_keys else ""
    return (
        f"talk to it: kubectl port-forward -n {scene.namespace} svc/{scene.name} 8000, and beside "
        f"it: tandem chat --url http://localhost:8000{key}"
    )


def _watch(scene: Scene) -> str:
    return f"wait; it can be watched: kubectl get isvc -n {scene.namespace} {scene.name} -w"


def _describe(scene: Scene, name: str, *, kind: str = "pod") -> str:
    return f"look at it: kubectl describe {kind} -n {scene.namespace} {name}"


def _kubectl(scene: Scene, command: str) -> str:
    return f"kubectl {command} -n {scene.namespace} -l {scene.selector}"
