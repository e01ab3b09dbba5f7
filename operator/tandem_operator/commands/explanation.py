"""A service and what belongs to it → five sentences that explain its state; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tandem_operator import reasons
from tandem_operator.commands.blockers import find_blocker
from tandem_operator.commands.decisions import last_decision_text
from tandem_operator.commands.snapshot import ServiceSnapshot
from tandem_operator.commands.text import count_of, sentence
from tandem_operator.k8s.objects import Object
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.status.conditions import ConditionType
from tandem_serve.api.changes import ChangeClass


def explain(
    service: Object,
    ray_service: Object | None,
    pods: Sequence[Object],
    events: Sequence[Object],
    now: str,
) -> list[str]:
    """Return state, replicas, last change, blocker and next step, one sentence each.

    Args:
        service: the InferenceService, as the API server has it.
        ray_service: its RayService; None: there is none.
        pods: its pods, the Ray head among them.
        events: the Events of its namespace.
        now: this moment, as Kubernetes writes it.
    """
    snapshot = ServiceSnapshot(
        service=service, ray_service=ray_service, pods=pods, events=events, now=now
    )
    blocker = find_blocker(snapshot)
    lines = (
        _state(snapshot),
        _replicas(snapshot),
        _change(snapshot),
        blocker.text,
        blocker.way_out,
    )
    return [sentence(line) for line in lines]


def _state(snapshot: ServiceSnapshot) -> str:
    subject = f"service {snapshot.name} in namespace {snapshot.namespace}"
    metadata = snapshot.service["metadata"]
    if is_being_deleted(snapshot.service):
        return f"{subject} is being deleted, since {snapshot.since(metadata['deletionTimestamp'])}"
    ready = snapshot.condition(ConditionType.READY)
    since = snapshot.condition_age(ConditionType.READY)
    match ready.get("status"):
        case "True":
            return f"{subject} {_ready_text(snapshot, ready, since)}"
        case "False":
            return f"{subject} has not been ready for {since} ({ready['reason']})"
        case "Unknown":
            return f"the state of {subject} has been unknown for {since} ({ready['reason']})"
    created = snapshot.since(metadata["creationTimestamp"])
    return f"{subject} was created {created} ago, and has not been reconciled yet"


def _ready_text(snapshot: ServiceSnapshot, ready: Mapping[str, Any], since: str) -> str:
    match ready["reason"]:
        case reasons.SERVING_PREVIOUS:
            return f"serves, but its previous version: {_endpoint(snapshot)} answers"
        case reasons.SCALED_TO_ZERO:
            return f"has been without replicas for {since}: {ready['message']}"
    return f"has been ready for {since}: {_endpoint(snapshot)} answers"


def _endpoint(snapshot: ServiceSnapshot) -> str:
    model, url = snapshot.status.get("model", ""), snapshot.status.get("url", "")
    return f"model {model} at {url}"


def _replicas(snapshot: ServiceSnapshot) -> str:
    verb = "answers" if snapshot.desired == 1 else "answer"
    text = f"{snapshot.ready} of {count_of(snapshot.desired, 'desired replica')} {verb}"
    if snapshot.ranks > 1:
        text += f"; each is a group of {snapshot.ranks} ranks"
    if cluster := snapshot.status.get("rayCluster"):
        text += f"; Ray cluster {cluster}"
    if snapshot.new_cluster and snapshot.new_cluster != snapshot.status.get("rayCluster"):
        text += f", and {snapshot.new_cluster} for the new version"
    text = f"{text}; {_pods(snapshot)}"
    decided = last_decision_text(snapshot.service, snapshot.now)
    return f"{text}; {decided}" if decided else text


def _pods(snapshot: ServiceSnapshot) -> str:
    going = sum(is_being_deleted(pod) for pod in snapshot.pods)
    there = count_of(len(snapshot.pods) - going, "pod")
    return f"{there}, and {going} terminating" if going else there


def _change(snapshot: ServiceSnapshot) -> str:
    if snapshot.observed_generation < snapshot.generation:
        return f"the spec was written {_written(snapshot)}, and has not been observed since"
    pending = snapshot.status.get("pendingChange")
    if pending:
        change, fields = _with_meaning(pending["class"]), ", ".join(pending["fields"])
        return f"{_pending(snapshot)}: {change} in {fields}"
    return _without_pending(snapshot)


def _without_pending(snapshot: ServiceSnapshot) -> str:
    """Tell of the change of a status that names no fields: the first start, or none."""
    reason = snapshot.reason(ConditionType.PROGRESSING)
    if snapshot.holds(ConditionType.PROGRESSING):
        since = snapshot.condition_age(ConditionType.PROGRESSING)
        return f"it has been starting for {since}; progressDeadlineSeconds is {snapshot.deadline_s}"
    if reason == reasons.DEADLINE_EXCEEDED:
        return f"{_pending(snapshot)}; the spec was written {_written(snapshot)}"
    if reason == reasons.REJECTED:
        return f"nothing changes while the spec is rejected; it was written {_written(snapshot)}"
    if change := snapshot.last_change:
        ago, change_class = snapshot.since(change.at), _with_meaning(change.reason)
        return f"the last change was {ago} ago: {change_class}, which {change.message}"
    return f"no change is under way; the spec was last written {_written(snapshot)}"


def _pending(snapshot: ServiceSnapshot) -> str:
    if snapshot.reason(ConditionType.PROGRESSING) == reasons.DEADLINE_EXCEEDED:
        return "a change has exceeded its progress deadline"
    return f"a change has been under way for {snapshot.condition_age(ConditionType.PROGRESSING)}"


def _with_meaning(change_class: str) -> str:
    # The status may be that of another version of the operator.
    meanings = [known.meaning for known in ChangeClass if known.value == change_class]
    return f"{change_class} ({meanings[0]})" if meanings else change_class


def _written(snapshot: ServiceSnapshot) -> str:
    by = f" by {snapshot.writer}" if snapshot.writer else ""
    return f"{snapshot.since(snapshot.written_at)} ago{by}"
