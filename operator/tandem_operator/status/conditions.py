"""Conditions of a status: their types, and their form in a status; pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tandem_operator.k8s.messages import MAX_CONDITION_MESSAGE, shorten


class ConditionType(StrEnum):
    """Types of conditions, in the order in which they are shown."""

    READY = "Ready"
    """Requests are answered, by whichever version; else it has the reason of an unmet condition."""

    ACCEPTED = "Accepted"
    """The spec can be carried out."""

    RAY_READY = "RayReady"
    """The Ray cluster of the newest version runs."""

    MODEL_LOADED = "ModelLoaded"
    """A replica of the newest version has loaded the model."""

    PROGRESSING = "Progressing"
    """A change is under way."""


class ScalingConditionType(StrEnum):
    """Types of the conditions that the autoscaler writes."""

    SCALING_ACTIVE = "ScalingActive"
    """The autoscaler can decide: its metrics can be trusted."""

    SCALING_LIMITED = "ScalingLimited"
    """Another number is recommended than a limit or a window allows."""

    SLO_FEASIBLE = "SLOFeasible"
    """An idle replica keeps the targets."""

    CAPACITY_AVAILABLE = "CapacityAvailable"
    """The nodes have room for the replicas that are needed."""


class ConditionStatus(StrEnum):
    """Status of a condition; Unknown is not False."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    type: ConditionType | ScalingConditionType
    status: ConditionStatus
    reason: str
    """One word in CamelCase, for programs."""

    message: str
    """One sentence, for people."""


def merge_conditions(
    previous: Iterable[Mapping[str, Any]],
    current: Iterable[Condition],
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """Return `current` in the form of the status of an object of this generation.

    `lastTransitionTime` is `now` only where the status differs from the previous one.
    """
    before = {condition["type"]: condition for condition in previous}
    return [
        _written(condition, before.get(condition.type), generation, now) for condition in current
    ]


def find_condition(status: Mapping[str, Any], condition_type: str) -> Mapping[str, Any]:
    """Return the condition of this type in a status of the API server; empty: there is none."""
    conditions = status.get("conditions", ())
    return next(
        (condition for condition in conditions if condition.get("type") == condition_type), {}
    )


def _written(
    condition: Condition, before: Mapping[str, Any] | None, generation: int, now: str
) -> dict[str, Any]:
    is_same = before is not None and before.get("status") == condition.status
    return {
        "type": str(condition.type),
        "status": str(condition.status),
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before and is_same else now,
        "reason": condition.reason,
        "message": shorten(condition.message, MAX_CONDITION_MESSAGE),
    }
