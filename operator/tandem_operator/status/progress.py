"""The Progressing condition: a change under way, its start, and what it waits for; pure.

The start of a change is not recorded: it is the later of the transition of the Progressing
condition and of the operator's last change of the RayService. A number of replicas is no change.
"""

from collections.abc import Mapping
from typing import Any

from tandem_operator import reasons
from tandem_operator.k8s import names
from tandem_operator.status.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    find_condition,
)
from tandem_operator.status.facts import Facts
from tandem_operator.status.ray_view import is_in_effect


def last_change(ray_service: Mapping[str, Any]) -> str | None:
    """Moment at which the operator last changed more than the number of replicas; None: never."""
    stamp: str | None = ray_service["metadata"].get("annotations", {}).get(names.CHANGED_AT)
    return stamp or _last_write(ray_service)


def _last_write(ray_service: Mapping[str, Any]) -> str | None:
    """Moment at which the operator last changed a field of the RayService; None: never."""
    times: list[str] = [
        entry["time"]
        for entry in ray_service["metadata"].get("managedFields", ())
        if entry.get("manager") == names.FIELD_MANAGER and not entry.get("subresource")
    ]
    return max(times, default=None)


def change_start(
    previous: Mapping[str, Any], *, written: str | None, generation: int, now: str
) -> str | None:
    """Moment at which the change under way began; None: it is overdue, with no change since."""
    before = find_condition(previous, ConditionType.PROGRESSING)
    since: str = before.get("lastTransitionTime", "")
    if before.get("status") == ConditionStatus.TRUE:
        return max(since, written or since)
    if (
        before.get("reason") != reasons.DEADLINE_EXCEEDED
        or generation > before["observedGeneration"]
    ):
        return now
    return written if written and written > since else None


def served_during_a_change(previous: Mapping[str, Any]) -> bool:
    """Return True when a status says that requests were answered during a change."""
    types = (ConditionType.READY, ConditionType.PROGRESSING)
    return all(
        find_condition(previous, kind).get("status") == ConditionStatus.TRUE for kind in types
    )


def is_complete(facts: Facts) -> bool:
    """Return True when everything desired runs, and nothing else does."""
    service, ray = facts.service, facts.ray
    if (
        service is None
        or facts.problems
        or facts.write_failure
        or not facts.is_applied
        or ray is None
    ):
        return False
    is_answering = ray.is_serving if service.replicas else ray.refuses_at_zero
    if not ray.is_observed or not is_answering or ray.pending or ray.active is None:
        return False
    # KubeRay moves the endpoint when Ray says that the new replicas run, and counts the pods behind
    # it again a moment later; until the new pods are ready, the count is that of the old ones.
    if ray.is_switching or (ray.active.workers and not ray.active.ready_workers):
        return False
    desired = service.replicas
    return is_in_effect(ray.active, service) and ray.ready_replicas >= desired


def progressing(facts: Facts, waits_for: str) -> Condition:
    """Return the Progressing condition; `waits_for` is the sentence about what is missing."""
    if facts.problems:
        return _condition(
            ConditionStatus.FALSE, reasons.REJECTED, "the spec is rejected; nothing is changed"
        )
    if is_complete(facts) or _stays_reconciled(facts):
        return _condition(
            ConditionStatus.FALSE, reasons.RECONCILED, "the observed state is the desired state"
        )
    if facts.is_overdue:
        deadline_s = facts.service.spec.progress_deadline_seconds if facts.service else 0
        message = overdue_message(deadline_s, waits_for)
        return _condition(ConditionStatus.FALSE, reasons.DEADLINE_EXCEEDED, message)
    if facts.write_failure:
        return _condition(ConditionStatus.TRUE, facts.write_failure.reason, waits_for)
    has_served = facts.ray is not None and facts.ray.active is not None
    return _condition(
        ConditionStatus.TRUE, reasons.UPDATING if has_served else reasons.STARTING, waits_for
    )


def _stays_reconciled(facts: Facts) -> bool:
    """Return True after a change was complete: a replica that fails later is no change."""
    before = find_condition(facts.previous, ConditionType.PROGRESSING)
    if before.get("reason") != reasons.RECONCILED or not facts.is_applied or facts.ray is None:
        return False
    reconciled_at: str = before["lastTransitionTime"]
    return (facts.last_change or "") <= reconciled_at


def overdue_message(deadline_s: int, waits_for: str) -> str:
    """Return the message of a change that is overdue because of `waits_for`."""
    return f"not complete within progressDeadlineSeconds {deadline_s}: {waits_for}"


def _condition(status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(ConditionType.PROGRESSING, status, reason, message)
