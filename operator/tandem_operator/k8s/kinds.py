"""The kinds of Kubernetes objects that the operator reads and writes."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tandem_serve.api.spec import GROUP, KIND


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, as the API server's paths name it."""

    group: str
    """API group; empty: the core group."""

    version: str
    name: str
    plural: str

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_path(self) -> str:
        """Path of the group's version in the API server's URLs."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}"

    def path(self, namespace: str | None) -> str:
        """Path of the objects in `namespace`; None: in all."""
        if namespace is None:
            return f"{self.group_path}/{self.plural}"
        return f"{self.group_path}/namespaces/{quote(namespace, safe='')}/{self.plural}"


INFERENCE_SERVICE: Final = Kind(GROUP, "v1alpha1", KIND, "inferenceservices")
RAY_SERVICE: Final = Kind("ray.io", "v1", "RayService", "rayservices")
RAY_CLUSTER: Final = Kind("ray.io", "v1", "RayCluster", "rayclusters")
POD: Final = Kind("", "v1", "Pod", "pods")
NODE: Final = Kind("", "v1", "Node", "nodes")
CORE_SERVICE: Final = Kind("", "v1", "Service", "services")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
VOLUME_CLAIM: Final = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT: Final = Kind("", "v1", "Event", "events")
DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
PROMETHEUS_RULE: Final = Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")

CHILDREN: Final = {
    kind.name: kind for kind in (RAY_SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY, PROMETHEUS_RULE)
}
"""The kinds that are rendered and applied, by name."""

OPTIONAL: Final = frozenset({PROMETHEUS_RULE})
"""Those of them that a cluster need not have: without one, services are made all the same."""
