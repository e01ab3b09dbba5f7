"""The schema of an InferenceService's status, which the operator alone writes."""

from typing import Any

from tandem_operator.crd.schema import Schema
from tandem_serve.api.changes import ChangeClass


def status_schema() -> Schema:
    """Return the schema of the status.

    Nothing here has a length: no rule reads it, and a long message must not be lost.
    """
    return _object(
        "Observed state of the service; only the operator writes it.",
        observedGeneration=_count(
            "metadata.generation of the newest spec that is, or was, in effect: while a change is "
            "under way, or rejected, it stays behind. At first that of the first spec."
        ),
        conditions={
            "description": "Ready, its needs Accepted, RayReady and ModelLoaded, and Progressing.",
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _condition(),
        },
        url=_text("Base URL of the endpoint inside the cluster; OpenAI clients add /v1."),
        model=_text("Name under which requests ask for the model."),
        reason=_text(
            "Reason of the condition Ready, in one CamelCase word: Serving, ServingPrevious "
            "while the previous version answers, or the reason why none does."
        ),
        message=_text("Message of the condition Ready, with the way out where there is one."),
        replicas=_object(
            "Numbers of replicas.",
            desired=_count("Replicas that the spec requests."),
            ready=_count("Replicas that answer requests."),
            summary=_text("ready/desired, as `kubectl get` shows it."),
        ),
        selector=_text("Label selector of the replicas' pods, for the scale subresource."),
        rayCluster=_text("RayCluster that serves now."),
        pendingChange=_object(
            "A change of the spec that the service has not taken over yet.",
            **{"class": _change_class()},
            fields={
                "description": "Paths of the fields that differ, such as spec.engine.dtype.",
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string"},
            },
        ),
    )


def _condition() -> Schema:
    """Return the schema of metav1.Condition."""
    state = _text("True, False or Unknown.") | {"enum": ["True", "False", "Unknown"]}
    since = _text("Time at which status last changed.") | {"format": "date-time"}
    return _object(
        "A condition, as in metav1.Condition.",
        type=_text("Type of the condition."),
        status=state,
        observedGeneration=_count("metadata.generation of the spec that this condition is about."),
        lastTransitionTime=since,
        reason=_text("Reason, in one CamelCase word."),
        message=_text("Reason as a sentence."),
    ) | {"required": ["type", "status", "lastTransitionTime", "reason", "message"]}


def _change_class() -> Schema:
    text = " ".join(f"{one}: {one.meaning}." for one in ChangeClass)
    return _text(text) | {"enum": [one.value for one in ChangeClass]}


def _object(description: str, **properties: Any) -> Schema:
    return {"description": description, "type": "object", "properties": properties}


def _text(description: str) -> Schema:
    return {"description": description, "type": "string"}


def _count(description: str) -> Schema:
    return {"description": description, "type": "integer", "minimum": 0}
