"""Facts of a reconcile → the status of an InferenceService; pure.

RayReady and ModelLoaded are about the newest version, Ready about what clients get: while an old
version goes on serving, Ready stays True and the others have the reason that delays the new one. To
tell the two apart, `observedGeneration` of Ready and of the whole status is that of the newest spec
that has been in effect: `kubectl wait` and kstatus wait until it is the object's.
"""

from collections.abc import Mapping
from typing import Any, Final

from tandem_operator import reasons
from tandem_operator.k8s.messages import MAX_CONDITION_MESSAGE, shorten
from tandem_operator.k8s.names import COMPONENT, SERVICE, WORKER, endpoint_url
from tandem_operator.status import progress
from tandem_operator.status.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    merge_conditions,
)
from tandem_operator.status.facts import Facts, Problem
from tandem_operator.status.pending_change import PendingChange
from tandem_operator.status.ray_view import ClusterView, RayView

NO_KUBERAY: Final = "this Kubernetes serves no RayService"
INSTALL_KUBERAY: Final = (
    "install KubeRay: helm install kuberay-operator kuberay-operator --version 1.6.2 "
    "--repo https://ray-project.github.io/kuberay-helm/ "
    "--namespace kuberay-system --create-namespace"
)
_NOT_OBSERVED: Final = (
    "KubeRay has not observed this generation of the RayService; if it persists, check the "
    "log of KubeRay's operator"
)


_AT_ZERO: Final = "no replica is asked for, so none has loaded the model"


def status_document(facts: Facts) -> dict[str, Any]:
    """Return the whole status; equal facts give equal documents, but for transition times."""
    accepted = _accepted(facts)
    ray_ready = _ray_ready(facts)
    model_loaded = _model_loaded(facts)
    parts = (accepted, ray_ready, model_loaded)
    progressing = progress.progressing(facts, _waits_for(facts, parts))
    ready = _ready(facts, parts, is_reconciled=progressing.reason == reasons.RECONCILED)
    generation = _generation_in_effect(facts, progressing)
    before = facts.previous.get("conditions", ())
    document = {
        "observedGeneration": generation,
        "reason": ready.reason,
        "message": shorten(ready.message, MAX_CONDITION_MESSAGE),
        "url": _url(facts),
        "model": facts.service.model_name if facts.service else facts.previous.get("model"),
        "replicas": _replicas(facts),
        "selector": f"{SERVICE}={facts.name},{COMPONENT}={WORKER}",
        "rayCluster": _ray_cluster(facts.ray),
        "pendingChange": _pending_change(facts, progressing),
        "conditions": [
            *merge_conditions(before, [ready], generation=generation, now=facts.now),
            *merge_conditions(
                before, [*parts, progressing], generation=facts.generation, now=facts.now
            ),
        ],
    }
    return {name: value for name, value in document.items() if value is not None}


def own_part(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a status that the reconciler writes; other loops write the others."""
    others = {"scaling", "microBatch", "ranks"}
    kept = {name: value for name, value in status.items() if name not in others}
    if "conditions" in kept:
        types = set(ConditionType)
        kept["conditions"] = [
            condition for condition in kept["conditions"] if condition["type"] in types
        ]
    return kept


def unknown_document(
    previous: Mapping[str, Any], problem: Problem, *, generation: int, now: str
) -> dict[str, Any]:
    """Return the status of a service that cannot be observed: as before, with Ready Unknown."""
    ready = Condition(ConditionType.READY, ConditionStatus.UNKNOWN, problem.reason, problem.message)
    previous = own_part(previous)
    before = previous.get("conditions", ())
    in_effect = _last_in_effect(previous) or generation
    written = merge_conditions(before, [ready], generation=in_effect, now=now)
    others = [condition for condition in before if condition["type"] != ConditionType.READY]
    return {
        **previous,
        "reason": ready.reason,
        "message": shorten(ready.message, MAX_CONDITION_MESSAGE),
        "conditions": [*written, *others],
    }


def _generation_in_effect(facts: Facts, progressing: Condition) -> int:
    """Return the newest generation that is, or was, in effect; at first the object's."""
    is_switching = facts.ray is not None and facts.ray.pending is not None
    is_in_effect = progressing.reason == reasons.RECONCILED and not is_switching
    before = _last_in_effect(facts.previous)
    return facts.generation if is_in_effect or before is None else before


def _last_in_effect(previous: Mapping[str, Any]) -> int | None:
    generation: int | None = previous.get("observedGeneration")
    return generation


def _accepted(facts: Facts) -> Condition:
    if not facts.problems:
        return Condition(
            ConditionType.ACCEPTED,
            ConditionStatus.TRUE,
            reasons.VALID,
            "the spec can be carried out",
        )
    text = "; ".join(problem.message for problem in facts.problems)
    return Condition(ConditionType.ACCEPTED, ConditionStatus.FALSE, facts.problems[0].reason, text)


def _ray_ready(facts: Facts) -> Condition:
    state, reason, message = _ray_condition(facts)
    return Condition(ConditionType.RAY_READY, state, reason, message)


def _ray_condition(facts: Facts) -> tuple[ConditionStatus, str, str]:
    if not facts.has_kuberay:
        return ConditionStatus.FALSE, reasons.KUBERAY_MISSING, f"{NO_KUBERAY}; {INSTALL_KUBERAY}"
    if facts.ray is None:
        return ConditionStatus.UNKNOWN, reasons.NOT_CREATED, "the RayService is not created yet"
    if facts.ray.refusal:
        return (
            ConditionStatus.FALSE,
            reasons.KUBERAY_REFUSED,
            f"KubeRay refuses the RayService: {facts.ray.refusal}",
        )
    if facts.ray.newest is None:
        return ConditionStatus.UNKNOWN, reasons.NOT_OBSERVED, _NOT_OBSERVED
    return _head_condition(facts.ray.newest)


def _head_condition(cluster: ClusterView) -> tuple[ConditionStatus, str, str]:
    head = cluster.head
    if head is None and cluster.pod_problem:
        return (
            ConditionStatus.FALSE,
            reasons.HEAD_FAILED,
            f"the Ray head does not start: {cluster.pod_failure}",
        )
    if head is None:
        return (
            ConditionStatus.FALSE,
            reasons.HEAD_MISSING,
            f"Ray cluster {cluster.name} has no head pod yet",
        )
    if head.is_ready:
        return (
            ConditionStatus.TRUE,
            reasons.HEAD_READY,
            f"Ray cluster {cluster.name} runs{_ray_error_text(cluster)}",
        )
    if head.failure:
        return (
            ConditionStatus.FALSE,
            reasons.HEAD_FAILED,
            f"the Ray head does not start: {head.failure}",
        )
    return (
        ConditionStatus.FALSE,
        reasons.HEAD_STARTING,
        f"the Ray head is starting in pod {head.name}",
    )


def _ray_error_text(cluster: ClusterView) -> str:
    return f", but its dashboard does not answer: {cluster.ray_error}" if cluster.ray_error else ""


def _model_loaded(facts: Facts) -> Condition:
    state, reason, message = _model_condition(facts)
    return Condition(ConditionType.MODEL_LOADED, state, reason, message)


def _model_condition(facts: Facts) -> tuple[ConditionStatus, str, str]:
    cluster = facts.ray.newest if facts.ray else None
    if cluster is None:
        return ConditionStatus.UNKNOWN, reasons.NOT_STARTED, "no replica has been started yet"
    if _is_at_zero(facts) and not cluster.serving:
        return ConditionStatus.FALSE, reasons.SCALED_TO_ZERO, _AT_ZERO
    if cluster.serving or _digest_says_running(cluster):
        return ConditionStatus.TRUE, reasons.LOADED, _running_text(cluster)
    if cluster.app and cluster.app.failure:
        return ConditionStatus.FALSE, reasons.REPLICA_FAILED, cluster.app.failure
    if cluster.pod_failure:
        return (
            ConditionStatus.FALSE,
            reasons.POD_FAILED,
            f"a replica pod cannot run: {cluster.pod_failure}",
        )
    return ConditionStatus.FALSE, reasons.LOADING, "no replica has loaded the model yet"


def _digest_says_running(cluster: ClusterView) -> bool:
    """Return True when KubeRay's digest, which has no replicas, is RUNNING: then all run."""
    return cluster.app is not None and cluster.settings is None and cluster.app.status == "RUNNING"


def _running_text(cluster: ClusterView) -> str:
    if not cluster.counts_replicas or cluster.app is None:
        return "replicas run"
    text = f"{cluster.serving} of {cluster.app.target_replicas} replicas run"
    return f"{text}; another does not: {cluster.failure}" if cluster.failure else text


def _ready(facts: Facts, parts: tuple[Condition, ...], *, is_reconciled: bool) -> Condition:
    ray = facts.ray
    if is_reconciled and ray is not None and ray.refuses_at_zero and _is_at_zero(facts):
        return _ready_at_zero(facts)
    if ray is None or not ray.is_serving:
        return _not_ready(facts, parts)
    # A number of replicas that KubeRay has not observed yet is no new version.
    is_observed = ray.is_observed or is_reconciled
    if not facts.problems and facts.is_applied and is_observed and not ray.pending:
        return Condition(
            ConditionType.READY, ConditionStatus.TRUE, reasons.SERVING, f"answers at {_url(facts)}"
        )
    why = _waits_for(facts, parts)
    text = f"the previous version answers at {_url(facts)}; the new one is not ready: {why}"
    return Condition(ConditionType.READY, ConditionStatus.TRUE, reasons.SERVING_PREVIOUS, text)


def _is_at_zero(facts: Facts) -> bool:
    return facts.service is not None and facts.service.replicas == 0


def _ready_at_zero(facts: Facts) -> Condition:
    """Return Ready of a service without replicas that is as it should be.

    It is True, as of a Deployment without replicas: tools that wait for a service would wait for
    its first client else.
    """
    mode = facts.service.spec.scaling.mode if facts.service else "Manual"
    text = f"no replica is asked for; {_url(facts)} refuses requests with 503 and Retry-After"
    wakes = "the first of them starts a replica" if mode == "Auto" else "none starts a replica"
    return Condition(
        ConditionType.READY, ConditionStatus.TRUE, reasons.SCALED_TO_ZERO, f"{text}, and {wakes}"
    )


def _not_ready(facts: Facts, parts: tuple[Condition, ...]) -> Condition:
    if facts.write_failure:
        return Condition(
            ConditionType.READY,
            ConditionStatus.FALSE,
            facts.write_failure.reason,
            facts.write_failure.message,
        )
    for part in parts:
        if part.status is not ConditionStatus.TRUE:
            return Condition(ConditionType.READY, ConditionStatus.FALSE, part.reason, part.message)
    text = "the replicas run, but the endpoint has no ready pod yet"
    return Condition(ConditionType.READY, ConditionStatus.FALSE, reasons.NO_ENDPOINT, text)


def _waits_for(facts: Facts, parts: tuple[Condition, ...]) -> str:
    """Return the sentence that names what the change under way waits for."""
    if facts.write_failure:
        return facts.write_failure.message
    if facts.problems or not facts.has_kuberay:
        return next(part.message for part in parts if part.status is ConditionStatus.FALSE)
    if not facts.is_applied:
        return "the change is being written"
    # Failures of the previous version no longer matter.
    if facts.ray and facts.ray.newest and not facts.ray.is_observed:
        return _NOT_OBSERVED
    for part in parts:
        if part.status is not ConditionStatus.TRUE:
            return part.message
    return _waits_for_replicas(facts)


def _waits_for_replicas(facts: Facts) -> str:
    ray, service = facts.ray, facts.service
    if ray is None or service is None:
        return _NOT_OBSERVED
    if ray.newest and ray.newest.failure:
        return _running_text(ray.newest)
    if ray.pending:
        return "the new version runs; KubeRay is switching the endpoint to it"
    desired = service.replicas
    if ray.ready_replicas == desired:
        return "Ray is still applying the change"
    return f"{ray.ready_replicas} of {desired} replicas answer"


def _url(facts: Facts) -> str | None:
    if facts.service is None and facts.ray is None:
        return None
    return endpoint_url(facts.name, facts.namespace)


def _replicas(facts: Facts) -> dict[str, Any]:
    before = facts.previous.get("replicas", {}).get("desired", 0)
    desired = facts.service.replicas if facts.service else before
    ready = facts.ray.ready_replicas if facts.ray else 0
    return {"desired": desired, "ready": ready, "summary": f"{ready}/{desired}"}


def _ray_cluster(ray: RayView | None) -> str | None:
    cluster = (ray.active or ray.pending) if ray else None
    return cluster.name if cluster else None


def _pending_change(facts: Facts, progressing: Condition) -> dict[str, Any] | None:
    """Return the change under way: about to be written, or written and not complete."""
    if progressing.reason in {reasons.RECONCILED, reasons.REJECTED}:
        return None
    before = facts.previous.get("pendingChange")
    changes = [PendingChange.read(before)] if before else []
    changes += [facts.change] if facts.change else []
    if not changes:
        return None
    return PendingChange.joined(changes).document()
