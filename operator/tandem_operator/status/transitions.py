"""Transitions between two statuses → Events; pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from tandem_operator import reasons
from tandem_operator.k8s.event_correlator import NewEvent
from tandem_operator.status.conditions import ConditionStatus, ConditionType, find_condition


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[NewEvent]:
    """Return the Events about the changes between two statuses of one service."""
    return [
        *_acceptance(before, after),
        *_change(before, after),
        *_failures(before, after),
        *_readiness(before, after),
    ]


def _acceptance(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[NewEvent]:
    old, new = _both(before, after, ConditionType.ACCEPTED)
    if new.get("status") == ConditionStatus.TRUE and old.get("status") != ConditionStatus.TRUE:
        yield NewEvent("Normal", "Accepted", new["message"])
    if new.get("status") == ConditionStatus.FALSE and _differs(old, new):
        yield NewEvent("Warning", reasons.REJECTED, new["message"])


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[NewEvent]:
    change = after.get("pendingChange")
    if change and change != before.get("pendingChange"):
        yield NewEvent("Normal", change["class"], f"changes {', '.join(change['fields'])}")


def _failures(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[NewEvent]:
    watched = {
        ConditionType.RAY_READY: (
            reasons.KUBERAY_MISSING,
            reasons.KUBERAY_REFUSED,
            reasons.HEAD_FAILED,
        ),
        ConditionType.MODEL_LOADED: (reasons.REPLICA_FAILED, reasons.POD_FAILED),
        ConditionType.PROGRESSING: (reasons.DEADLINE_EXCEEDED,),
    }
    for condition_type, failures in watched.items():
        old, new = _both(before, after, condition_type)
        # While a deadline stays exceeded, only its message changes.
        is_new = old.get("reason") != new.get("reason") or (
            condition_type is not ConditionType.PROGRESSING and _differs(old, new)
        )
        if new.get("reason") in failures and is_new:
            yield NewEvent("Warning", new["reason"], new["message"])


def _readiness(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[NewEvent]:
    old, new = _both(before, after, ConditionType.READY)
    if new["status"] == ConditionStatus.TRUE and old.get("status") != ConditionStatus.TRUE:
        yield NewEvent("Normal", "Ready", new["message"])
    if new["status"] != ConditionStatus.TRUE and old.get("status") == ConditionStatus.TRUE:
        yield NewEvent("Warning", "NotReady", new["message"])
    elif new["reason"] == reasons.SERVING and old.get("reason") == reasons.SERVING_PREVIOUS:
        yield NewEvent("Normal", "Updated", f"the new version serves: {new['message']}")


def _both(
    before: Mapping[str, Any], after: Mapping[str, Any], condition_type: ConditionType
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return find_condition(before, condition_type), find_condition(after, condition_type)


def _differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(old.get(key) != new.get(key) for key in ("status", "reason", "message"))
