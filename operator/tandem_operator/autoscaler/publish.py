"""Writes status.scaling with its conditions, and posts Events about what has changed."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from tandem_operator import reasons
from tandem_operator.autoscale.mode import StatusScaling
from tandem_operator.autoscaler.document import (
    Document,
    Told,
    is_due,
    own_part,
    scaling_conditions,
    scaling_document,
)
from tandem_operator.autoscaler.memory import Memory
from tandem_operator.clock import now_text
from tandem_operator.k8s import names
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.event_correlator import NewEvent
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object
from tandem_operator.status.conditions import (
    ConditionStatus,
    ScalingConditionType,
    find_condition,
)

_log: Final = logging.getLogger(__name__)


class Publisher:
    """Writes the autoscaler's part of the status of services, where it differs."""

    def __init__(self, kube: KubeClient, events: EventRecorder) -> None:
        self._kube = kube
        self._events = events

    async def write(
        self, found: Object, numbers: StatusScaling, memory: Memory, told: Told | None = None
    ) -> None:
        """Write the numbers, and in modes with an autoscaler its decision.

        Raises:
            Conflict: the object is not the one that was decided on any more.
            KubeError: it was not written.
        """
        before = found.get("status") or {}
        document = _document(found, numbers, memory, told)
        if not is_due(own_part(before), document):
            return
        manifest = _status_manifest(found, document)
        await self._kube.apply_status(INFERENCE_SERVICE, manifest, manager=names.AUTOSCALER)
        if told is not None:
            await self._record_events(found, before, document, told)

    async def _record_events(
        self, found: Object, before: Mapping[str, Any], document: Document, told: Told
    ) -> None:
        key = NamespacedName.of(found)
        new_events = _events(before, document, told)
        for new in new_events:
            level = logging.WARNING if new.type == "Warning" else logging.INFO
            _log.log(level, "%s: %s: %s", key, new.reason, new.message)
        await self._events.post(found, new_events, time.monotonic())


def _document(found: Object, numbers: StatusScaling, memory: Memory, told: Told | None) -> Document:
    conditions: list[Document] = []
    if told is not None:
        conditions = scaling_conditions(
            told,
            (found.get("status") or {}).get("conditions") or (),
            generation=found["metadata"]["generation"],
            now=now_text(),
        )
    scaling = scaling_document(numbers, memory.decisions, memory.history.cold_start_s)
    return {"scaling": scaling, "conditions": conditions}


def _status_manifest(found: Object, document: Document) -> Document:
    # The uid keeps the status from another object that has taken the name meanwhile; the
    # resourceVersion from one that another decision, or another spec, has changed.
    kept = ("name", "namespace", "uid", "resourceVersion")
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": {name: found["metadata"][name] for name in kept},
        "status": document,
    }


def _events(before: Mapping[str, Any], document: Document, told: Told) -> list[NewEvent]:
    """Return the Events about a change of the number, and a problem that begins or ends."""
    changed = _scaled(before, document, told)
    problem = _problem(before, document)
    return [one for one in (changed, problem) if one is not None]


def _scaled(before: Mapping[str, Any], document: Document, told: Told) -> NewEvent | None:
    old = (before.get("scaling") or {}).get("desiredReplicas")
    new = document["scaling"].get("desiredReplicas")
    if old is None or new is None or old == new:
        return None
    text = f"from {old} to {new} replicas, {told.decision.reason}: {told.message}"
    return NewEvent("Normal", reasons.SCALED_UP if new > old else reasons.SCALED_DOWN, text)


def _problem(before: Mapping[str, Any], document: Document) -> NewEvent | None:
    kind = ScalingConditionType.SCALING_ACTIVE
    old, new = find_condition(before, kind), find_condition(document, kind)
    was_false = old.get("status") == ConditionStatus.FALSE
    is_false = new.get("status") == ConditionStatus.FALSE
    if is_false and (not was_false or old.get("reason") != new["reason"]):
        return NewEvent("Warning", new["reason"], new["message"])
    if was_false and new.get("status") == ConditionStatus.TRUE:
        return NewEvent("Normal", new["reason"], f"{new['message']} again")
    return None
