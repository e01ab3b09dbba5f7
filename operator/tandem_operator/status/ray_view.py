"""Status of KubeRay and answers of Ray about one RayService, as one view; pure.

During an upgrade there are two Ray clusters: the active one serves, the pending one starts the new
version. Ray's own answer, from a cluster's head, has the most detail; without it, KubeRay's digest
in the status of the RayService is used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tandem_operator.k8s.owners import owned_by
from tandem_operator.status.conditions import find_condition
from tandem_operator.status.pod_view import PodView
from tandem_serve.api.document import DEPLOYMENT, LiveSettings
from tandem_serve.api.spec import InferenceService
from tandem_serve.api.state import ServiceState, service_state

RayAnswers = Mapping[str, Mapping[str, Any]]
"""Name of a Ray cluster → its answer to `GET /api/serve/applications/`."""

RayClusters = Mapping[str, Mapping[str, Any]]
"""Name of a Ray cluster → its RayCluster, where it was read."""

_SERVING_STATES: Final = frozenset({"RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION"})
_KUBERAY_REFUSES: Final = "ValidationFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One Ray cluster of the service."""

    name: str
    head: PodView | None
    """The pod of its head; None: there is none yet."""

    workers: tuple[PodView, ...]
    app: ServiceState | None
    """The service as Ray has it; None: Ray does not have it yet, or it is unknown."""

    pod_problem: str | None = None
    """KubeRay's reason for not creating its pods."""

    ray_error: str | None = None
    """Error of the request to Ray itself, where one was sent."""

    settings: Mapping[str, Any] | None
    """The deployment as last handed to Ray; None: Ray itself does not answer."""

    @property
    def ready_workers(self) -> int:
        """Pods of replicas whose HAProxy is ready."""
        return sum(pod.is_ready for pod in self.workers)

    @property
    def has_head_behind_endpoint(self) -> bool:
        """True when requests may go to the head, which answers where there is no replica."""
        return self.head is not None and self.head.is_ready and self.head.is_behind_endpoint

    @property
    def counts_replicas(self) -> bool:
        """True when `app` lists all replicas; KubeRay's digest has none."""
        return self.settings is not None and self.app is not None and bool(self.app.target_replicas)

    @property
    def serving(self) -> int:
        """Replicas that answer requests, as far as is known; also while settings are applied."""
        return (
            sum(replica.state in _SERVING_STATES for replica in self.app.replicas)
            if self.app
            else 0
        )

    @property
    def failure(self) -> str | None:
        """Reason that keeps its replicas from running, in one sentence."""
        if self.app and self.app.failure:
            return self.app.failure
        return self.pod_failure

    @property
    def pod_failure(self) -> str | None:
        """Reason that keeps the pods of replicas from running, in one sentence."""
        if self.pod_problem:
            return f"KubeRay cannot create the pods: {self.pod_problem}"
        return next((pod.failure for pod in self.workers if pod.failure), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayView:
    """One RayService."""

    is_observed: bool
    """True when KubeRay has observed its newest generation."""

    refusal: str | None
    """KubeRay's reason for refusing it."""

    endpoints: int
    """Pods behind the endpoint: by KubeRay's count, and while Ray does not answer, when KubeRay
    cannot count either, those that are ready."""

    active: ClusterView | None
    pending: ClusterView | None

    was_serving: bool = False
    """True when it served at the last reconcile, during a change."""

    has_ready_pods: bool = False
    """True when a replica's pod is ready, of whichever version."""

    @property
    def is_switching(self) -> bool:
        """True when the endpoint has just moved, to pods that are not counted yet.

        They may become ready a moment later; those of the version before are there until then.
        """
        return self.was_serving and not self.endpoints and self.has_ready_pods

    @property
    def newest(self) -> ClusterView | None:
        """The cluster that has, or will have, the newest version."""
        return self.pending or self.active

    @property
    def is_serving(self) -> bool:
        """True when requests are answered: the endpoint has pods, with replicas in them."""
        if not (self.endpoints or self.is_switching) or self.active is None:
            return False
        return bool(self.active.serving) or self._uncounted > 0

    @property
    def refuses_at_zero(self) -> bool:
        """True when the endpoint refuses requests, since Ray was asked for no replica."""
        app = self.active.app if self.active else None
        return (
            self.active is not None
            and self.active.has_head_behind_endpoint
            and app is not None
            and app.status == "RUNNING"
            and not app.target_replicas
            and not app.running
        )

    @property
    def ready_replicas(self) -> int:
        """Replicas that answer requests."""
        if not (self.endpoints or self.is_switching) or self.active is None:
            return 0
        return self.active.serving or self._uncounted

    @property
    def _uncounted(self) -> int:
        """Replicas behind the endpoint while Ray does not list them: pods other than the head."""
        if self.active is None or self.active.counts_replicas:
            return 0
        # Of pods that are ready the head is none.
        is_head_counted = self.active.settings is not None and self.active.has_head_behind_endpoint
        return max(self.endpoints - is_head_counted, int(self.is_switching))


def ray_view(
    ray_service: Mapping[str, Any],
    pods: Iterable[PodView],
    answers: RayAnswers,
    ray_clusters: RayClusters,
    ray_errors: Mapping[str, str] | None = None,
    *,
    was_serving: bool = False,
) -> RayView:
    """Return the view of a RayService of the API server."""
    metadata, status = ray_service["metadata"], ray_service.get("status", {})
    pods = tuple(pods)

    def cluster(part: str) -> ClusterView | None:
        digest = status.get(part, {})
        view = _cluster_view(digest, metadata["name"], pods, answers, ray_clusters)
        return view and replace(view, ray_error=(ray_errors or {}).get(view.name))

    ready = find_condition(status, "Ready")
    active = cluster("activeServiceStatus")
    return RayView(
        is_observed=status.get("observedGeneration") == metadata["generation"],
        refusal=ready.get("message") if ready.get("reason") == _KUBERAY_REFUSES else None,
        endpoints=_endpoints(status, active),
        active=active,
        pending=cluster("pendingServiceStatus"),
        was_serving=was_serving,
        has_ready_pods=any(pod.is_ready and not pod.is_head for pod in pods),
    )


def _endpoints(status: Mapping[str, Any], active: ClusterView | None) -> int:
    if active is not None and active.settings is None:
        return active.ready_workers
    counted: int = status.get("numServeEndpoints", 0)
    return counted


def clusters_named(ray_service: Mapping[str, Any]) -> list[str]:
    """Return the Ray clusters of a RayService in KubeRay's digest."""
    return [digest["rayClusterName"] for digest in _digests(ray_service)]


def clusters_not_running(ray_service: Mapping[str, Any]) -> list[str]:
    """Return the Ray clusters that do not run yet by KubeRay's digest: they may have a reason."""
    return [digest["rayClusterName"] for digest in _digests(ray_service) if not _runs(digest)]


def own_heads(
    ray_service: Mapping[str, Any], ray_clusters: RayClusters, pods: Iterable[PodView]
) -> dict[str, PodView]:
    """Return the heads that may get Ray's token, by the names of their Ray clusters.

    Any user may write labels. A head counts when the RayCluster of that name controls it, and
    the RayService controls that one, by their uids.
    """
    pods = [pod for pod in pods if pod.is_head and pod.ip]
    heads_by_name: dict[str, PodView] = {}
    for name in clusters_named(ray_service):
        cluster = ray_clusters.get(name)
        if not owned_by(cluster, ray_service["metadata"]["uid"]) or cluster is None:
            continue
        heads = [pod for pod in pods if pod.owner == cluster["metadata"]["uid"]]
        if heads:
            # Of one that ends and one that starts, the one that is ready.
            heads_by_name[name] = max(heads, key=lambda pod: pod.is_ready)
    return heads_by_name


def is_in_effect(cluster: ClusterView, service: InferenceService) -> bool:
    """Return True when all replicas of `service` run in `cluster`, with its newest settings."""
    app, settings = cluster.app, cluster.settings
    if app is None or app.status != "RUNNING":
        return False
    if settings is None:
        # Without an answer of Ray, KubeRay's digest decides.
        return True
    desired = service.replicas
    # A service at zero was handed to Ray without a number.
    handed = settings.get("num_replicas")
    return (
        app.is_ready
        and app.target_replicas == desired
        and (handed is None or handed == desired)
        and settings.get("user_config") in (None, LiveSettings.of(service).document())
    )


def _cluster_view(
    digest: Mapping[str, Any],
    service: str,
    pods: tuple[PodView, ...],
    answers: RayAnswers,
    ray_clusters: RayClusters,
) -> ClusterView | None:
    name = digest.get("rayClusterName")
    if not name:
        return None
    answer = answers.get(name)
    ours = [pod for pod in pods if pod.cluster == name]
    failure = find_condition(ray_clusters.get(name, {}).get("status", {}), "ReplicaFailure")
    return ClusterView(
        name=name,
        head=next((pod for pod in ours if pod.is_head), None),
        workers=tuple(pod for pod in ours if not pod.is_head),
        app=service_state(_as_answer(digest) if answer is None else answer, service),
        pod_problem=failure.get("message") if failure.get("status") == "True" else None,
        settings=None if answer is None else _settings(answer, service),
    )


def _digests(ray_service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = ray_service.get("status", {})
    digests = [status.get(part, {}) for part in ("activeServiceStatus", "pendingServiceStatus")]
    return [digest for digest in digests if digest.get("rayClusterName")]


def _runs(digest: Mapping[str, Any]) -> bool:
    applications = digest.get("applicationStatuses", {}).values()
    return bool(applications) and all(
        application.get("status") == "RUNNING" for application in applications
    )


def _as_answer(digest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return KubeRay's digest of Ray's answer, in the form of the answer."""
    applications = digest.get("applicationStatuses", {})
    return {
        "applications": {
            name: {
                "status": application.get("status", ""),
                "message": application.get("message", ""),
                "deployments": application.get("serveDeploymentStatuses", {}),
            }
            for name, application in applications.items()
        }
    }


def _settings(answer: Mapping[str, Any], service: str) -> Mapping[str, Any]:
    application = answer.get("applications", {}).get(service, {})
    deployments = (application.get("deployed_app_config") or {}).get("deployments", ())
    return next(
        (deployment for deployment in deployments if deployment.get("name") == DEPLOYMENT), {}
    )
