"""Posts Kubernetes Events about services; a failure to post never stops a reconcile."""

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from tandem_operator.clock import now_text
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KubeError, NotFound
from tandem_operator.k8s.event_correlator import EventCorrelator, NewEvent
from tandem_operator.k8s.kinds import EVENT
from tandem_operator.k8s.messages import MAX_EVENT_MESSAGE, shorten
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.k8s.objects import NamespacedName

_log = logging.getLogger(__name__)


class EventRecorder:
    """Posts the Events that `EventCorrelator` selects."""

    def __init__(self, kube: KubeClient, instance: str) -> None:
        self._kube = kube
        self._instance = instance
        self._correlator = EventCorrelator()

    async def post(self, about: Mapping[str, Any], new_events: list[NewEvent], now: float) -> None:
        """Post `new_events` about the object `about`; a failure is only logged."""
        for new in new_events:
            await self._post(about, new, now)

    def forget(self, uid: str) -> None:
        """Drop the Events of an object that is gone."""
        self._correlator.forget(uid)

    async def _post(self, about: Mapping[str, Any], new: NewEvent, now: float) -> None:
        metadata = about["metadata"]
        new_name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        due = self._correlator.correlate(metadata["uid"], new, now, new_name)
        if due is None:
            return
        name, count = due
        try:
            if count == 1:
                await self._kube.create(EVENT, self._manifest(about, new, name))
            else:
                key = NamespacedName(metadata["namespace"], name)
                changes = {"count": count, "lastTimestamp": now_text()}
                await self._kube.merge(EVENT, key, changes)
        except NotFound:
            # Events live an hour; the next post is a new one.
            self._correlator.forget(metadata["uid"], new)
        except KubeError as error:
            _log.warning("cannot post the Event %s of %s: %s", new.reason, metadata["name"], error)

    def _manifest(self, about: Mapping[str, Any], new: NewEvent, name: str) -> dict[str, Any]:
        metadata, now = about["metadata"], now_text()
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": new.type,
            "reason": new.reason,
            "message": shorten(new.message, MAX_EVENT_MESSAGE),
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
