"""Services that an operator of another namespace serves: left alone, with an Event that says so.

Two operators whose namespaces overlap would both write: each would scale by its own limits, and
change the objects of the other back. The first to report a status serves the service, and its
namespace stands there: two of one namespace share a Lease, so one of them leads.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from tandem_operator import reasons
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.event_correlator import NewEvent
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.k8s.owners import operator_of

_log = logging.getLogger(__name__)


def served_by(operator: str, cache: ObjectCache) -> list[NamespacedName]:
    """List the services that the operator of this namespace has begun to serve."""
    return [
        key
        for key in cache.keys(INFERENCE_SERVICE, None)
        if (isvc := cache.get(INFERENCE_SERVICE, key)) and operator_of(isvc) == operator
    ]


class OtherOperators:
    """The operators that serve services which this one sees, too.

    Args:
        events: Takes an Event for each such service, once.
        own: Namespace of this operator's Lease.
    """

    def __init__(self, events: EventRecorder, *, own: str) -> None:
        self._events = events
        self._own = own
        self._operators: dict[NamespacedName, str] = {}

    async def serve(self, isvc: Mapping[str, Any], key: NamespacedName) -> bool:
        """Return True when another operator serves the InferenceService, and say so once."""
        operator = operator_of(isvc)
        if operator in {None, self._own}:
            self.forget(key)
            return False
        if self._operators.get(key) != operator:
            self._operators[key] = operator
            await self._say(isvc, key, operator)
        return True

    def forget(self, key: NamespacedName) -> None:
        """Drop a service that is gone, or this operator's."""
        self._operators.pop(key, None)

    async def _say(self, isvc: Mapping[str, Any], key: NamespacedName, operator: str) -> None:
        message = (
            f"the operator of namespace '{operator}' serves it, so that of '{self._own}' leaves it "
            f"alone; to hand it over, end that operator, or take namespace '{key.namespace}' from "
            f"it, then run: kubectl patch isvc {key.name} --namespace {key.namespace} "
            f'--subresource=status --type=merge --patch \'{{"status":{{"operator":null}}}}\''
        )
        _log.warning("%s: %s: %s", key, reasons.OTHER_OPERATOR, message)
        event = NewEvent("Warning", reasons.OTHER_OPERATOR, message)
        await self._events.post(isvc, [event], time.monotonic())
