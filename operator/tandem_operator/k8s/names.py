"""The names, labels and annotations of everything that belongs to one InferenceService."""

from typing import Final

from tandem_serve.api import draining
from tandem_serve.api.spec import GROUP

FIELD_MANAGER: Final = "tandem-operator"
"""Field manager of server-side apply."""

APPLIED: Final = f"{GROUP}/applied"
"""Annotation: the hash of the object as it was rendered; it differs when a field was dropped."""

SPEC: Final = f"{GROUP}/spec"
"""Annotation of the RayService: the version it was rendered from, resolved, as compact JSON."""

CHANGED_AT: Final = f"{GROUP}/changed-at"
"""Annotation of the RayService: the time of its last write but for its number of replicas."""

AUTOSCALER: Final = "tandem-autoscaler"
"""Field manager of `scaling` and of its conditions in a service's status."""

REPLICA_PAGES: Final = "tandem-replica-pages"
"""Field manager of `microBatch` and `ranks` in a service's status."""

REVISION: Final = f"{GROUP}/revision"
"""Annotation of the pod templates: the hash of all that needs new pods when it changes."""

SERVICE: Final = f"{GROUP}/service"
"""Label of every object and pod: the name of the InferenceService."""

COMPONENT: Final = "app.kubernetes.io/component"
"""Label of the pods: head or worker."""

RAY_CLUSTER: Final = "ray.io/cluster"
"""KubeRay's label of a pod: the RayCluster that it belongs to."""

HEAD: Final = "head"
WORKER: Final = "worker"

SERVE_PORT: Final = draining.SERVE_PORT
"""Port of the endpoint, in the pods and in the Service."""

DASHBOARD_PORT: Final = 8265
"""Port of Ray's dashboard on the head."""

METRICS_PORT: Final = 8080
"""Port of Ray's own metrics on every pod."""

REPLICA_METRICS_PORT: Final = 9464
"""Port of a replica's metrics on its pod: those of the engine and of the HTTP layer."""

PROXY_METRICS_PORT: Final = 9101
"""Port of HAProxy's own metrics on every pod, Ray Serve's default."""

TOKEN_KEY: Final = "auth_token"  # noqa: S105  # the name of the key, as KubeRay wants it
"""Key of Ray's token in its Secret."""

MAX_NAME_LENGTH: Final = 47
"""KubeRay refuses longer names: it appends six characters for a RayCluster, then a suffix."""


def ray_service(service: str) -> str:
    """The RayService of `service`."""
    return service


def endpoint_service(service: str) -> str:
    """The Service that clients of `service` call; KubeRay makes it."""
    return service


def token_secret(service: str, digest: str) -> str:
    """The Secret with the token of Ray whose hash, in hexadecimal, is `digest`."""
    return f"{service}-token-{digest[:8]}"


def disruption_budget(service: str) -> str:
    """The PodDisruptionBudget over the worker pods."""
    return service


def prometheus_rule(service: str) -> str:
    """The PrometheusRule with the recording rules and alerts of `service`."""
    return f"{service}-slo"


def network_policy(service: str, component: str) -> str:
    """The NetworkPolicy of one kind of pod: head or worker."""
    return f"{service}-{component}"


def endpoint_url(service: str, namespace: str) -> str:
    """Base URL of `service` for clients in the same Kubernetes; OpenAI clients add /v1."""
    return f"http://{endpoint_service(service)}.{namespace}.svc:{SERVE_PORT}"


def object_labels(service: str) -> dict[str, str]:
    """The labels of an object that the operator makes for `service`."""
    return {
        "app.kubernetes.io/name": "tandem",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        "app.kubernetes.io/instance": service,
        SERVICE: service,
    }


def pod_labels(service: str, component: str) -> dict[str, str]:
    """The labels of the pods of `service`: head or worker.

    `app.kubernetes.io/name` is left to KubeRay: its head Service selects by the value that it
    sets itself, and finds no head when a template says another.
    """
    labels = object_labels(service)
    del labels["app.kubernetes.io/name"]
    return labels | {COMPONENT: component}


def pod_selector(service: str, component: str) -> dict[str, str]:
    """The labels that select the pods of one kind of `service`: head or worker."""
    return {SERVICE: service, COMPONENT: component}
