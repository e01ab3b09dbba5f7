"""Writes the status of a service where it differs, and posts Events about the transitions."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from tandem_operator import reasons
from tandem_operator.clock import seconds_between
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.event_correlator import NewEvent
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.objects import NamespacedName, status_manifest
from tandem_operator.metrics import Metrics, ServicePhase
from tandem_operator.status import progress
from tandem_operator.status.conditions import ConditionStatus, ConditionType, find_condition
from tandem_operator.status.document import own_part
from tandem_operator.status.facts import Facts
from tandem_operator.status.transitions import transitions
from tandem_serve.api.spec import PROGRESS_DEADLINE_S

_log = logging.getLogger(__name__)


def deadline_in_s(facts: Facts) -> float | None:
    """Seconds left for the change under way; None: its deadline passed before."""
    started = progress.change_start(
        facts.previous, written=facts.last_change, generation=facts.generation, now=facts.now
    )
    if started is None:
        return None
    service = facts.service
    limit = service.spec.progress_deadline_seconds if service else PROGRESS_DEADLINE_S
    return limit - seconds_between(started, facts.now)


class Reporter:
    """Reports the state of a service: status, Events, metrics."""

    def __init__(
        self, kube: KubeClient, events: EventRecorder, metrics: Metrics, *, operator: str
    ) -> None:
        self._kube = kube
        self._events = events
        self._metrics = metrics
        self._operator = operator

    async def report(self, isvc: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        """Write `document` as the status of `isvc`, unless it is the same.

        Raises:
            KubeError: the status was not written.
        """
        key, before = NamespacedName.of(isvc), own_part(isvc.get("status", {}))
        document = {**document, "operator": self._operator}
        if document != before:
            await self._kube.apply_status(INFERENCE_SERVICE, status_manifest(isvc, document))
            await self._record_events(isvc, key, transitions(before, document))
        is_ready = find_condition(document, ConditionType.READY)["status"] == ConditionStatus.TRUE
        self._metrics.set_phase(key, _phase(document, is_ready=is_ready), is_ready=is_ready)

    async def _record_events(
        self, isvc: Mapping[str, Any], key: NamespacedName, new_events: list[NewEvent]
    ) -> None:
        for new in new_events:
            level = logging.WARNING if new.type == "Warning" else logging.INFO
            _log.log(level, "%s: %s: %s", key, new.reason, new.message)
        await self._events.post(isvc, new_events, time.monotonic())


def _phase(document: Mapping[str, Any], *, is_ready: bool) -> ServicePhase:
    """Return the phase that sums the conditions up."""
    progressing = find_condition(document, ConditionType.PROGRESSING)
    if find_condition(document, ConditionType.READY)["status"] == ConditionStatus.UNKNOWN:
        return "Unknown"
    if progressing.get("reason") == reasons.REJECTED:
        return "Rejected"
    if progressing.get("reason") == reasons.DEADLINE_EXCEEDED:
        return "ProgressDeadlineExceeded"
    if progressing.get("status") == ConditionStatus.TRUE:
        return "Progressing"
    return "Ready" if is_ready else "NotReady"
