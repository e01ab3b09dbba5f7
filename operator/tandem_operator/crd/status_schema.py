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
        operator=_text(
            "Namespace of the operator that serves it; those of other namespaces leave it alone."
        ),
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
        microBatch=_micro_batch(),
        speculation=_speculation(),
        ranks=_ranks(),
        device=_device(),
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


def _micro_batch() -> Schema:
    return _object(
        "What micro-batches bring and cost, as the replicas show it; with streamOptions.microBatch "
        "alone.",
        replicas=_count("Replicas that the figures are of; of many 16 are read."),
        prefillReplicas=_count(
            "Those of them that cut steps with prefill where it is predicted to pay."
        ),
        decodeReplicas=_count("Those that cut decode steps."),
        overlap={
            "description": "Hidden communication over the lesser of communication and "
            "computation, of the steps that were cut in the last hour; absent: none was cut.",
            "type": "number",
            "minimum": 0,
        },
        kvBlocks=_count("KV blocks that micro-batches cost a replica."),
        kvBlocksOf=_count("KV blocks that it would have without them."),
        measuredAt=_time("Time at which the replicas were read."),
        message=_text("All of it as a sentence."),
    )


def _speculation() -> Schema:
    return _object(
        "What became of draft tokens, as the replicas show it; with speculation alone.",
        replicas=_count("Replicas that the figures are of; of many 16 are read."),
        methods={
            "description": "Draft tokens by the method that proposed them.",
            "type": "array",
            "x-kubernetes-list-type": "atomic",
            "items": _object(
                "Draft tokens of one method since the replicas started.",
                method=_text("Method, as in spec.engine.speculation.method."),
                draftTokens=_count("Draft tokens that steps checked."),
                acceptance={
                    "description": "Share of them that was right; absent: none was checked.",
                    "type": "number",
                    "minimum": 0,
                },
            ),
        },
        measuredAt=_time("Time at which the replicas were read."),
        message=_text("All of it as a sentence."),
    )


def _ranks() -> Schema:
    return _object(
        "What each rank of a replica holds, as the replicas show it themselves; a replica of one "
        "process has rank 0.",
        replicas=_count("Replicas that were read; of several, two are."),
        measuredAt=_time("Time at which they were read."),
        memory={
            "description": "The ranks in order; of several replicas, for each rank the most that "
            "it holds in one of them.",
            "type": "array",
            "x-kubernetes-list-type": "atomic",
            "items": _object(
                "Memory of one rank, in bytes.",
                rank=_count("Number of the rank."),
                processBytes=_bytes("Held before the weights were read: Python and torch."),
                weightsBytes=_bytes("Its part of the weights."),
                kvCacheBytes=_bytes("Its KV blocks."),
                hostCacheBytes=_bytes(
                    "Its blocks for sequences that are swapped out; absent: it has none."
                ),
                stepBytes=_bytes(
                    "Kept for its part of the largest step; absent: not measured, since the "
                    "number of KV blocks was given."
                ),
            ),
        },
    )


def _device() -> Schema:
    return _object(
        "What the replicas compute on, as they show it themselves; of several, the one with the "
        "least memory.",
        type=_text("Device that computes: cpu or npu."),
        name=_text("The processor or card, as its maker calls it."),
        software=_text("Kernels, or the versions of driver, CANN and torch_npu."),
        memoryBytes=_bytes("Memory of the device that a rank may use."),
        replicas=_count("Replicas that were read; of several, two are."),
        measuredAt=_time("Time at which they were read."),
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
    text = " ".join(f"{change_class}: {change_class.meaning}." for change_class in ChangeClass)
    return _text(text) | {"enum": [change_class.value for change_class in ChangeClass]}


def _object(description: str, **properties: Any) -> Schema:
    return {"description": description, "type": "object", "properties": properties}


def _text(description: str) -> Schema:
    return {"description": description, "type": "string"}


def _bytes(description: str) -> Schema:
    return _count(description) | {"format": "int64"}


def _count(description: str) -> Schema:
    return {"description": description, "type": "integer", "minimum": 0}
