"""Posts Kubernetes Events about services: seldom, counted, and never in anybody's way."""

import logging
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tandem_operator.clock import now_text
from tandem_operator.k8s.client import Kube, NamespacedName
from tandem_operator.k8s.errors import KubeError, NotFound
from tandem_operator.k8s.kinds import EVENT
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.status.transitions import NewEvent

REPEAT_AFTER_S: Final = 60.0
"""Seconds before the same thing is said again of the same service."""

_REMEMBERED: Final = 1000
_LONGEST_MESSAGE: Final = 1024
_log = logging.getLogger(__name__)


class _EventKey(NamedTuple):
    uid: str
    reason: str
    message: str


@dataclass(slots=True)
class _Event:
    """An Event that was posted, and how often its cause has come since."""

    name: str
    posted_at: float
    count: int = 1


class EventCorrelator:
    """Decides what is posted; pure. Moments are seconds of one clock."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._events: OrderedDict[_EventKey, _Event] = OrderedDict()

    def correlate(
        self, uid: str, new: NewEvent, now: float, new_name: str
    ) -> tuple[str, int] | None:
        """Name and count of the Event to post for `new`; None: it was posted a moment ago.

        A count of 1 means a new one, which is called `new_name`.
        """
        key = _EventKey(uid, new.reason, new.message)
        event = self._events.get(key)
        if event is None:
            self._events[key] = _Event(new_name, now)
            self._drop_oldest()
            return new_name, 1
        self._events.move_to_end(key)
        event.count += 1
        if now - event.posted_at < REPEAT_AFTER_S:
            return None
        event.posted_at = now
        return event.name, event.count

    def forget(self, uid: str, new: NewEvent | None = None) -> None:
        """Drop what was said of an object that is gone, or one thing alone."""
        dropped = [
            key
            for key in self._events
            if key.uid == uid and (new is None or key[1:] == (new.reason, new.message))
        ]
        for key in dropped:
            del self._events[key]

    def __len__(self) -> int:
        return len(self._events)

    def _drop_oldest(self) -> None:
        while len(self._events) > self._remembered:
            self._events.popitem(last=False)


class EventRecorder:
    """Posts what `EventCorrelator` decides."""

    def __init__(self, kube: Kube, instance: str) -> None:
        self._kube = kube
        self._instance = instance
        self._correlator = EventCorrelator()

    async def post(self, about: Mapping[str, Any], new_events: list[NewEvent], now: float) -> None:
        """Say `new_events` about the object `about`; a failure is logged and nothing more."""
        for new in new_events:
            await self._post(about, new, now)

    def forget(self, uid: str) -> None:
        """Drop what was said of an object that is gone."""
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
            # Events live an hour; the next time it is a new one.
            self._correlator.forget(metadata["uid"], new)
        except KubeError as error:
            _log.warning("the Event %s of %s is lost: %s", new.reason, metadata["name"], error)

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
            "message": _cut(new.message),
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _cut(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return message[: _LONGEST_MESSAGE - 1] + "…"
