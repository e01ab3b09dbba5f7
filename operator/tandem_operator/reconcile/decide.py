"""Desired and observed state → actions, facts for the status, and when to requeue; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_operator import reasons
from tandem_operator.k8s.kinds import DISRUPTION_BUDGET, RAY_SERVICE
from tandem_operator.k8s.owners import is_being_deleted, owned_by
from tandem_operator.reconcile.change_stamp import is_scaled
from tandem_operator.reconcile.observation import Observation
from tandem_operator.reconcile.parsed_spec import ParsedSpec
from tandem_operator.reconcile.plan import (
    Action,
    ApplyObject,
    OwnershipConflict,
    plan,
)
from tandem_operator.status import progress
from tandem_operator.status.conditions import ConditionStatus, ConditionType, find_condition
from tandem_operator.status.facts import Facts, Problem
from tandem_operator.status.pending_change import PendingChange, pending_change
from tandem_operator.status.ray_view import RayView, ray_view

POLL_S: Final = 3.0
"""Seconds between two requests to Ray during a change: Ray sends no events."""

POLLS_PER_S: Final = 10.0
"""Requests to Ray per second over all services; with more services each waits longer."""

_AFTER_WRITING_S: Final = 1.0
_WHILE_REJECTED_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Actions of one reconcile, or the problems that prevent them."""

    actions: tuple[Action, ...] = ()
    change: PendingChange | None = None
    """Change of the running service by the actions."""

    problems: tuple[Problem, ...] = ()
    """Reasons for taking no action; empty: there are none."""

    scales: bool = False
    """True when nothing but the number of replicas will be written."""

    @property
    def writes(self) -> bool:
        """True when an object will be written; a token that may be missing is no change."""
        return any(isinstance(action, ApplyObject) for action in self.actions)


def decide(parsed: ParsedSpec, observation: Observation) -> Intent:
    """Decide how the observed objects become the desired ones."""
    problems = parsed.problems + observation.missing
    if problems or parsed.desired is None or parsed.service is None:
        return Intent(problems=problems)
    try:
        actions = plan(parsed.desired, observation.children)
    except OwnershipConflict as conflict:
        return Intent(problems=(Problem(reasons.NAME_TAKEN, str(conflict)),))
    if not observation.has_kuberay:
        actions = tuple(action for action in actions if not _writes_ray_service(action))
    left_out = parsed.desired.may_lack & observation.missing_kinds
    actions = tuple(action for action in actions if _kind_written(action) not in left_out)
    if not any(_writes_ray_service(action) for action in actions):
        return Intent(actions=actions)
    ray_service = observation.ray_service(parsed.service.name)
    return Intent(
        actions=actions,
        change=pending_change(parsed.service, ray_service),
        scales=ray_service is not None and all(_scales(action, ray_service) for action in actions),
    )


def collect_facts(
    isvc: Mapping[str, Any],
    parsed: ParsedSpec,
    observation: Observation,
    intent: Intent,
    *,
    write_failure: Problem | None,
    now: str,
) -> Facts:
    """Collect the facts for the status of `isvc`, all but `is_overdue`."""
    metadata = isvc["metadata"]
    ray_service = observation.ray_service(metadata["name"])
    if ray_service is None or not owned_by(ray_service, metadata["uid"]):
        ray_service = None
    return Facts(
        name=metadata["name"],
        namespace=metadata["namespace"],
        generation=metadata["generation"],
        previous=isvc.get("status", {}),
        service=parsed.service,
        problems=intent.problems,
        has_kuberay=observation.has_kuberay,
        ray=_ray_view(ray_service, observation, isvc.get("status", {})) if ray_service else None,
        last_change=progress.last_change(ray_service) if ray_service else None,
        is_applied=(not intent.writes or intent.scales) and not _must_end_first(ray_service),
        change=intent.change,
        # A write that is no longer desired has no failure any more.
        write_failure=write_failure if intent.actions else None,
        now=now,
    )


def is_reconciled(document: Mapping[str, Any]) -> bool:
    """Return True when a status is as desired, so that only an event can change it."""
    replicas = document["replicas"]
    is_over = find_condition(document, ConditionType.PROGRESSING)["reason"] == reasons.RECONCILED
    is_ready = find_condition(document, ConditionType.READY)["status"] == ConditionStatus.TRUE
    return is_over and is_ready and bool(replicas["ready"] >= replicas["desired"])


def requeue_after_s(
    facts: Facts, document: Mapping[str, Any], *, deadline_in_s: float | None, polled: int
) -> float | None:
    """Seconds after which to requeue the service without an event; None: do not.

    `deadline_in_s` is the rest of progressDeadlineSeconds, `polled` the number of services whose
    Ray is polled.
    """
    if not facts.is_applied:
        return _AFTER_WRITING_S
    if facts.problems:
        may_pass = any(problem.reason != reasons.INVALID_SPEC for problem in facts.problems)
        return _WHILE_REJECTED_S if may_pass else None
    if is_reconciled(document):
        return None
    waits = [deadline_in_s] if deadline_in_s is not None and deadline_in_s > 0 else []
    if _can_ask_ray(facts):
        waits.append(max(POLL_S, polled / POLLS_PER_S))
    return min(waits, default=None)


def _can_ask_ray(facts: Facts) -> bool:
    clusters = (facts.ray.active, facts.ray.pending) if facts.ray else ()
    return any(cluster and cluster.head and cluster.head.ip for cluster in clusters)


def write_conflict(actions: tuple[Action, ...]) -> Problem | None:
    """Return the problem that `actions` recur: another writer changes the objects back."""
    writes = [action.manifest for action in actions if isinstance(action, ApplyObject)]
    if not writes:
        return None
    names = ", ".join(f"{manifest['kind']} '{manifest['metadata']['name']}'" for manifest in writes)
    return Problem(
        reasons.WRITE_CONFLICT,
        f"{names}: another writer changes it back after each write; look for a controller or a "
        "webhook that does",
    )


def _ray_view(
    ray_service: Mapping[str, Any], observation: Observation, previous: Mapping[str, Any]
) -> RayView:
    return ray_view(
        ray_service,
        observation.pods,
        observation.answers,
        observation.ray_clusters,
        observation.ray_errors,
        was_serving=progress.served_during_a_change(previous),
    )


def _must_end_first(ray_service: Mapping[str, Any] | None) -> bool:
    """Return True for a RayService that has to be recreated, once it is gone."""
    return ray_service is not None and is_being_deleted(ray_service)


def _scales(action: Action, ray_service: Mapping[str, Any]) -> bool:
    """Return True for an action that follows the number of replicas and does nothing else."""
    if not isinstance(action, ApplyObject):
        return True
    if action.manifest["kind"] == RAY_SERVICE.name:
        return is_scaled(action.manifest, ray_service)
    return bool(action.manifest["kind"] == DISRUPTION_BUDGET.name)


def _writes_ray_service(action: Action) -> bool:
    return _kind_written(action) == RAY_SERVICE.name


def _kind_written(action: Action) -> str | None:
    return action.manifest["kind"] if isinstance(action, ApplyObject) else None
