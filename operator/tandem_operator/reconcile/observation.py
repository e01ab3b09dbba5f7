"""The observed state of one service; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem_operator.k8s import names
from tandem_operator.k8s.kinds import RAY_SERVICE
from tandem_operator.reconcile.plan import ObjectKey, ObservedObjects
from tandem_operator.status.facts import Problem
from tandem_operator.status.pod_view import PodView
from tandem_operator.status.ray_view import RayAnswers, RayClusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observed state of one service."""

    children: ObservedObjects
    """The objects of the desired names, owned by the service or not."""

    pods: tuple[PodView, ...]
    answers: RayAnswers
    ray_clusters: RayClusters
    ray_errors: Mapping[str, str] = field(default_factory=dict)
    """Error of the request to the head of a Ray cluster, by the cluster's name."""

    missing: tuple[Problem, ...]
    """Objects that the service refers to and that do not exist."""

    has_kuberay: bool
    """True when the API server serves RayServices."""

    missing_kinds: frozenset[str] = frozenset()
    """Optional kinds that the API server does not serve, or does not let the operator read."""

    def ray_service(self, name: str) -> Mapping[str, Any] | None:
        """Return the RayService of the service `name`, of any owner."""
        return self.children.objects.get(ObjectKey(RAY_SERVICE.name, names.ray_service(name)))
