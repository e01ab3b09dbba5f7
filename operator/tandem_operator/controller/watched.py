"""The watched kinds: their objects, and the changes that lead to a reconcile; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandem_operator.k8s.kinds import (
    CORE_SERVICE,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    OPTIONAL,
    POD,
    PROMETHEUS_RULE,
    RAY_CLUSTER,
    RAY_SERVICE,
    Kind,
)
from tandem_operator.k8s.names import SERVICE
from tandem_operator.k8s.objects import NamespacedName, Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A watched kind."""

    kind: Kind
    labels: Selector | None = None
    """Labels of the watched objects; None: all objects."""

    ignores_status: bool = False
    """True: a change of the status alone leads to no reconcile; it is read in the next one."""

    @property
    def is_optional(self) -> bool:
        """True when a cluster need not have the kind."""
        return self.kind in OPTIONAL


class EventFilter:
    """Selects the events of one watch that lead to a reconcile."""

    def __init__(self, watched: Watched) -> None:
        self._ignores_status = watched.ignores_status
        self._delivered: dict[NamespacedName, int] = {}

    def passes(self, item: Mapping[str, Any], *, is_gone: bool) -> bool:
        """Return True for an object that is new, gone, or changed in more than its status.

        Compared is what this watch delivered before, and not the cache: a LIST may be ahead.
        """
        if not self._ignores_status:
            return True
        key = NamespacedName.of(item)
        before = self._delivered.pop(key, None)
        if is_gone:
            return True
        self._delivered[key] = _fingerprint(item)
        return before != self._delivered[key]

    def reset(self) -> None:
        """Forget everything: a watch that restarts delivers all objects again."""
        self._delivered.clear()


def _fingerprint(item: Mapping[str, Any]) -> int:
    """Return a hash of what a user or a controller may change, but for the status."""
    # The API server counts changes of a spec, and the request to delete, as a generation.
    fields = ("generation", "labels", "annotations", "ownerReferences")
    return hash(msgspec.json.encode([item["metadata"].get(name) for name in fields]))


_OURS: Final[Selector] = {SERVICE: None}
_BY_KUBERAY: Final[Selector] = {"ray.io/originated-from-crd": "RayService"}

WATCHED: Final = (
    Watched(kind=INFERENCE_SERVICE),
    Watched(kind=RAY_SERVICE, labels=_OURS),
    Watched(kind=POD, labels=_OURS),
    Watched(kind=RAY_CLUSTER, labels=_OURS, ignores_status=True),
    Watched(kind=CORE_SERVICE, labels=_BY_KUBERAY, ignores_status=True),
    Watched(kind=DISRUPTION_BUDGET, labels=_OURS, ignores_status=True),
    Watched(kind=NETWORK_POLICY, labels=_OURS, ignores_status=True),
    Watched(kind=PROMETHEUS_RULE, labels=_OURS, ignores_status=True),
)
"""Every kind that a reconcile reads, but for claims and Events: those carry no label of ours."""
