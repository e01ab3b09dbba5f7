"""The watched kinds: their objects, and the changes that lead to a reconcile; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_operator.k8s.cache import CachedObject
from tandem_operator.k8s.kinds import (
    CORE_SERVICE,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    RAY_CLUSTER,
    RAY_SERVICE,
    Kind,
)
from tandem_operator.k8s.names import SERVICE
from tandem_operator.k8s.objects import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A watched kind."""

    kind: Kind
    labels: Selector | None = None
    """Labels of the watched objects; None: all objects."""

    ignores_status: bool = False
    """True: a change of the status alone leads to no reconcile; it is read in the next one."""

    def leads_to_reconcile(self, before: CachedObject | None, item: Mapping[str, Any]) -> bool:
        """Return True when a change from `before`, None: from nothing, leads to a reconcile."""
        if before is None or not self.ignores_status:
            return True
        # The API server counts changes of a spec, and the request to delete, as a generation.
        return bool(before.generation != item["metadata"].get("generation"))


_OURS: Final[Selector] = {SERVICE: None}
_BY_KUBERAY: Final[Selector] = {"ray.io/originated-from-crd": "RayService"}

WATCHED: Final = (
    Watched(kind=INFERENCE_SERVICE),
    Watched(kind=RAY_SERVICE),
    Watched(kind=POD, labels=_OURS),
    Watched(kind=RAY_CLUSTER, labels=_OURS, ignores_status=True),
    Watched(kind=CORE_SERVICE, labels=_BY_KUBERAY, ignores_status=True),
    Watched(kind=DISRUPTION_BUDGET, labels=_OURS, ignores_status=True),
    Watched(kind=NETWORK_POLICY, labels=_OURS, ignores_status=True),
)
"""Every kind that a reconcile reads, but for claims and Events: those carry no label of ours."""
