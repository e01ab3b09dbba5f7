"""A service and what belongs to it → five sentences on why it is as it is; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_operator import progress, status
from tandem_operator.commands.obstacles import find_obstacle
from tandem_operator.commands.scene import Scene
from tandem_operator.commands.words import count_of, sentence
from tandem_operator.conditions import ConditionType

_MEANING: Final = {
    "Live": "running replicas take it over",
    "InPlace": "running replicas stay",
    "Replace": "new replicas take the place of the running ones",
}


def explain(
    service: Mapping[str, Any],
    ray_service: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    now: str,
) -> list[str]:
    """What the service is, what it has, what changed, what is in the way, and what to do.

    Args:
        service: the InferenceService, as the API server has it.
        ray_service: its RayService; None: there is none.
        pods: its pods, the Ray head among them.
        events: the Events of its namespace.
        now: this moment, as Kubernetes writes it.
    """
    scene = Scene(service=service, ray_service=ray_service, pods=pods, events=events, now=now)
    obstacle = find_obstacle(scene)
    lines = (_state(scene), _replicas(scene), _change(scene), obstacle.text, obstacle.way_out)
    return [sentence(line) for line in lines]


def _state(scene: Scene) -> str:
    who = f"service {scene.name} in namespace {scene.namespace}"
    metadata = scene.service["metadata"]
    if "deletionTimestamp" in metadata:
        return f"{who} is being deleted, since {scene.since(metadata['deletionTimestamp'])}"
    ready = scene.condition(ConditionType.READY)
    since = scene.for_so_long(ConditionType.READY)
    match ready.get("status"):
        case "True" if ready["reason"] == status.SERVING_PREVIOUS:
            return f"{who} serves, but its previous version: {_endpoint(scene)} answers"
        case "True":
            return f"{who} has been ready for {since}: {_endpoint(scene)} answers"
        case "False":
            return f"{who} has not been ready for {since} ({ready['reason']})"
        case "Unknown":
            return f"whether {who} is ready has not been known for {since} ({ready['reason']})"
    created = scene.since(metadata["creationTimestamp"])
    return f"{who} was made {created} ago, and nothing has been done about it yet"


def _endpoint(scene: Scene) -> str:
    model, url = scene.status.get("model", ""), scene.status.get("url", "")
    return f"model {model} at {url}"


def _replicas(scene: Scene) -> str:
    verb = "answers" if scene.desired == 1 else "answer"
    text = f"{scene.ready} of {count_of(scene.desired, 'desired replica')} {verb}"
    if cluster := scene.status.get("rayCluster"):
        text += f"; Ray cluster {cluster}"
    if scene.new_cluster and scene.new_cluster != scene.status.get("rayCluster"):
        text += f", and {scene.new_cluster} for the new version"
    return f"{text}; {_pods(scene)}"


def _pods(scene: Scene) -> str:
    going = sum("deletionTimestamp" in pod["metadata"] for pod in scene.pods)
    there = count_of(len(scene.pods) - going, "pod")
    return f"{there}, and {going} going away" if going else there


def _change(scene: Scene) -> str:
    if scene.seen_generation < scene.generation:
        return f"the spec was written {_written(scene)}, and has not been looked at since"
    pending = scene.status.get("pendingChange")
    if pending:
        return f"{_pending(scene)}: {_kind(pending['class'])} in {', '.join(pending['fields'])}"
    if scene.holds(ConditionType.PROGRESSING):
        since = scene.for_so_long(ConditionType.PROGRESSING)
        return f"it has been starting for {since}, of {scene.deadline_s} s that it may take"
    if scene.reason(ConditionType.PROGRESSING) == progress.REFUSED:
        return f"nothing changes while the spec is refused; it was written {_written(scene)}"
    if change := scene.last_change:
        fields = change.message.removeprefix("changes ")
        return (
            f"the last change was {scene.since(change.at)} ago: {_kind(change.reason)} in {fields}"
        )
    return f"no change is under way; the spec was last written {_written(scene)}"


def _pending(scene: Scene) -> str:
    if scene.reason(ConditionType.PROGRESSING) == progress.DEADLINE_EXCEEDED:
        return "a change is not done in time"
    return f"a change has been under way for {scene.for_so_long(ConditionType.PROGRESSING)}"


def _kind(change_class: str) -> str:
    return f"{change_class} ({_MEANING.get(change_class, '')})"


def _written(scene: Scene) -> str:
    by = f" by {scene.writer}" if scene.writer else ""
    return f"{scene.since(scene.written_at)} ago{by}"
