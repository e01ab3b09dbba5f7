"""The schema of an InferenceService's status, which the operator alone writes."""

from typing import Any

from tandem_operator.crd.schema import Schema
from tandem_operator.status.pending_change import CHANGE_CLASSES


def status_schema() -> Schema:
    """The status: what the service is, and what it waits for.

    Nothing here has a length: no rule looks at it, and a long reason must not be lost.
    """
    return _object(
        "What the operator sees of the service. It alone writes here.",
        observedGeneration=_count(
            "metadata.generation of the newest spec that is, or was, in effect: while a change is "
            "under way, or refused, it stays behind. At first that of the first spec."
        ),
        conditions={
            "description": "What holds of the service: Ready, and what Ready stands on.",
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _condition(),
        },
        url=_text("Base URL of the endpoint inside the cluster; OpenAI clients add /v1."),
        model=_text("Name under which requests ask for the model."),
        reason=_text("Ready, or why the service is not ready, in one CamelCase word."),
        message=_text("The reason as a sentence, with the way out where there is one."),
        replicas=_object(
            "How many replicas there are.",
            desired=_count("Replicas that the spec asks for."),
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
    """metav1.Condition."""
    state = _text("True, False or Unknown.") | {"enum": ["True", "False", "Unknown"]}
    since = _text("Time at which status last changed.") | {"format": "date-time"}
    return _object(
        "One thing that holds, does not hold, or is unknown.",
        type=_text("What the condition is about."),
        status=state,
        observedGeneration=_count("metadata.generation of the spec that this condition speaks of."),
        lastTransitionTime=since,
        reason=_text("Why, in one CamelCase word."),
        message=_text("Why, as a sentence."),
    ) | {"required": ["type", "status", "lastTransitionTime", "reason", "message"]}


def _change_class() -> Schema:
    text = "Live: running replicas take it over. InPlace: they stay, something around them changes."
    text += " Replace: new replicas take their place."
    return _text(text) | {"enum": list(CHANGE_CLASSES.values())}


def _object(description: str, **properties: Any) -> Schema:
    return {"description": description, "type": "object", "properties": properties}


def _text(description: str) -> Schema:
    return {"description": description, "type": "string"}


def _count(description: str) -> Schema:
    return {"description": description, "type": "integer", "minimum": 0}
