"""Conditions of a status: how they are written down, and when they count as changed; pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tandem_operator.k8s.text import MAX_CONDITION_MESSAGE, shorten


class ConditionType(StrEnum):
    """What a condition is about, in the order in which they are shown."""

    READY = "Ready"
    """Clients are answered. Computed of the others, whichever version it is that answers."""

    ACCEPTED = "Accepted"
    """The spec can be carried out."""

    RAY_READY = "RayReady"
    """The Ray cluster of the newest version runs."""

    MODEL_LOADED = "ModelLoaded"
    """A replica of the newest version has loaded the model."""

    PROGRESSING = "Progressing"
    """A change is under way."""


class ConditionStatus(StrEnum):
    """Whether a condition holds; Unknown is not False."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, as it is now."""

    type: ConditionType
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
    """`current` as it stands in the status of an object of this generation.

    `lastTransitionTime` is `now` only where the status differs from the previous one.
    """
    before = {one["type"]: one for one in previous}
    return [_written(one, before.get(one.type), generation, now) for one in current]


def find_condition(status: Mapping[str, Any], condition_type: str) -> Mapping[str, Any]:
    """The condition in a status as the API server has it; empty: there is none."""
    conditions = status.get("conditions", ())
    return next((one for one in conditions if one.get("type") == condition_type), {})


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
