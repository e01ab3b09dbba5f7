"""Writes status.scaling with its conditions, and posts Events about what has changed."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from tandem_operator import reasons
from tandem_operator.autoscaler.document import (
    Document,
    ExplainedDecision,
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
from tandem_operator.k8s.objects import NamespacedName, Object, status_manifest
from tandem_operator.scaling_law.mode import StatusScaling
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
        self,
        isvc: Object,
        numbers: StatusScaling,
        memory: Memory,
        explained: ExplainedDecision | None = None,
    ) -> None:
        """Write the numbers, and in modes with an autoscaler its decision.

        Raises:
            Conflict: the object is not the one that was decided on any more.
            KubeError: it was not written.
        """
        before = isvc.get("status") or {}
        document = _document(isvc, numbers, memory, explained)
        if not is_due(own_part(before), document):
            return
        # Another decision, or another spec, may have changed it meanwhile.
        manifest = status_manifest(isvc, document, of_version=True)
        await self._kube.apply_status(INFERENCE_SERVICE, manifest, manager=names.AUTOSCALER)
        if explained is not None:
            await self._record_events(isvc, before, document, explained)

    async def _record_events(
        self,
        isvc: Object,
        before: Mapping[str, Any],
        document: Document,
        explained: ExplainedDecision,
    ) -> None:
        key = NamespacedName.of(isvc)
        new_events = _events(before, document, explained)
        for new in new_events:
            level = logging.WARNING if new.type == "Warning" else logging.INFO
            _log.log(level, "%s: %s: %s", key, new.reason, new.message)
        await self._events.post(isvc, new_events, time.monotonic())


def _document(
    isvc: Object, numbers: StatusScaling, memory: Memory, explained: ExplainedDecision | None
) -> Document:
    conditions: list[Document] = []
    if explained is not None:
        conditions = scaling_conditions(
            explained,
            (isvc.get("status") or {}).get("conditions") or (),
            generation=isvc["metadata"]["generation"],
            now=now_text(),
        )
    scaling = scaling_document(numbers, memory.decisions, memory.history.cold_start_s)
    return {"scaling": scaling, "conditions": conditions}


def _events(
    before: Mapping[str, Any], document: Document, explained: ExplainedDecision
) -> list[NewEvent]:
    """Return the Events about a change of the number, and a problem that begins or ends."""
    changed = _scaled(before, document, explained)
    problem = _problem(before, document)
    return [event for event in (changed, problem) if event is not None]


def _scaled(
    before: Mapping[str, Any], document: Document, explained: ExplainedDecision
) -> NewEvent | None:
    old = (before.get("scaling") or {}).get("desiredReplicas")
    new = document["scaling"].get("desiredReplicas")
    if old is None or new is None or old == new:
        return None
    text = f"from {old} to {new} replicas, {explained.decision.reason}: {explained.message}"
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
