"""What is there of one service, as it was read; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem_operator.k8s import names
from tandem_operator.k8s.kinds import RAY_SERVICE
from tandem_operator.reconcile.plan import ObjectKey, ObservedObjects
from tandem_operator.status.facts import Problem
from tandem_operator.status.pods import PodView
from tandem_operator.status.ray_view import RayAnswers, RayClusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is there of one service."""

    children: ObservedObjects
    """The objects of the desired names, ours or not."""

    pods: tuple[PodView, ...]
    answers: RayAnswers
    ray_clusters: RayClusters
    ray_errors: Mapping[str, str] = field(default_factory=dict)
    """Why the head of a Ray cluster does not answer, by the cluster's name."""

    missing: tuple[Problem, ...]
    """What the service refers to, and is not there."""

    has_kuberay: bool
    """Whether the API server knows RayServices."""

    def ray_service(self, name: str) -> Mapping[str, Any] | None:
        """The RayService of the service `name`, ours or not."""
        return self.children.objects.get(ObjectKey(RAY_SERVICE.name, names.ray_service(name)))
