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
            "description": "Ready, its needs Accepted, RayReady and ModelLoaded, and Progressing; "
            "with an autoscaler ScalingActive, ScalingLimited, SLOFeasible and CapacityAvailable.",
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
            desired=_count("Replicas that are to run."),
            ready=_count("Replicas that answer requests."),
            summary=_text("ready/desired, as `kubectl get` shows it."),
        ),
        scaling=_scaling(),
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


def _scaling() -> Schema:
    return _object(
        "Number of replicas in force, and the decisions that led to it.",
        mode=_text(
            "Mode that the number is of; it stays Auto until the number that the autoscaler left "
            "is in the spec."
        ),
        desiredReplicas=_count("Replicas in force, in every mode."),
        supersededReplicas=_count(
            "spec.scaling.replicas that the autoscaler has moved away from: it asks for nothing "
            "until another value is written."
        ),
        recommendedReplicas=_count("Replicas that the autoscaler would take, in mode Recommend."),
        coldStartSeconds={
            "description": "90th percentile of the measured times from the start of a replica's "
            "pod until it answers.",
            "type": "number",
            "minimum": 0,
        },
        decisions={
            "description": "The last 20 decisions, the newest last; equal ones in a row are one.",
            "type": "array",
            "x-kubernetes-list-type": "atomic",
            "items": _decision(),
        },
    )


def _decision() -> Schema:
    return _object(
        "A decision about the number of replicas.",
        firstTime=_time("Time at which it was first made."),
        lastTime=_time("Time at which it was last made."),
        replicas=_count("Replicas from then on."),
        recommended=_count("Replicas by the measurements, before windows, steps and limits."),
        reason=_text("Reason, in one CamelCase word."),
        message=_text("Reason as a sentence."),
        inputs={
            "description": "Figures that it was made from, by name; one that is absent is unknown.",
            "type": "object",
            "additionalProperties": {"type": "number"},
        },
    )


def _time(description: str) -> Schema:
    return _text(description) | {"format": "date-time"}


def _condition() -> Schema:
    """Return the schema of metav1.Condition."""
    state = _text("True, False or Unknown.") | {"enum": ["True", "False", "Unknown"]}
    since = _time("Time at which status last changed.")
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
