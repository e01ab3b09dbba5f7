"""Builds the input of a reconcile: services, RayServices, pods and answers, as small as they go."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from kubernetes.aio.client import Configuration
from yarl import URL

from tandem_operator.k8s.connection import Connection, Login
from tandem_operator.status.document import status_document
from tandem_operator.status.facts import Facts, Problem
from tandem_operator.status.pod_view import PodView, pod_view
from tandem_operator.status.ray_view import RayView, ray_view
from tandem_serve.api.document import LiveSettings
from tandem_serve.api.spec import InferenceService

NAME, NAMESPACE = "tiny", "demo"
T0, T1, T2, T3 = (f"2026-11-21T14:0{minute}:00Z" for minute in range(4))
CAUSE = "tensor 'model.norm.weight' is missing in /models/tandem-tiny/model.safetensors"
TRACEBACK = (
    "A replica failed to start with exception. Retrying 2 more time(s). Error: Traceback\n"
    f"tandem_engine.api.errors.CheckpointError: {CAUSE}\n"
)


def connection_to(server: str | URL) -> Connection:
    """Return the connection to an API server that checks no credentials."""
    configuration = Configuration(host=str(server).rstrip("/"))
    return Connection(
        configuration=configuration,
        tls=ssl.create_default_context(),
        namespace="demo",
        login=Login(configuration),
    )


def service(replicas: int = 1, **spec: Any) -> InferenceService:
    """An InferenceService that asks for so many replicas."""
    return InferenceService.model_validate(
        {
            "apiVersion": "serving.tandem.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "model": {"source": "file:///models/tandem-tiny"},
                "scaling": {"minReplicas": replicas},
                **spec,
            },
        }
    )


def pod(
    name: str, cluster: str = "old", *, head: bool = False, ready: bool = True, **status: Any
) -> dict[str, Any]:
    """A pod as the API server has it."""
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "ray.io/cluster": cluster,
                "ray.io/node-type": "head" if head else "worker",
            },
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **status,
        },
    }


def digest(cluster: str, status: str | None = None, message: str = "") -> dict[str, Any]:
    """KubeRay's digest of one cluster, and of its application if it has a status."""
    if status is None:
        return {"rayClusterName": cluster}
    deployments = {"replica": {"status": "UPDATING", "message": message}}
    application = {"status": status, "serveDeploymentStatuses": deployments}
    return {"rayClusterName": cluster, "applicationStatuses": {NAME: application}}


def ray_service(
    *,
    active: Mapping[str, Any] | None = None,
    pending: Mapping[str, Any] | None = None,
    endpoints: int = 0,
    generation: int = 1,
    seen: int | None = 1,
    ready_reason: str = "Initializing",
) -> dict[str, Any]:
    """A RayService as the API server has it; `seen` None: KubeRay has not touched it."""
    status = {
        "observedGeneration": seen,
        "numServeEndpoints": endpoints,
        "conditions": [{"type": "Ready", "reason": ready_reason, "message": "KubeRay's words"}],
        "activeServiceStatus": active or {},
        "pendingServiceStatus": pending or {},
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "generation": generation},
        "status": {} if seen is None else status,
    }


def answer(
    *states: str, target: int = 1, status: str = "RUNNING", message: str = "", **settings: Any
) -> dict[str, Any]:
    """Ray's own answer: one replica in each of `states`."""
    replicas = [
        {"replica_id": f"r{number}", "state": state, "pid": 1000 + number}
        for number, state in enumerate(states)
    ]
    told = {"num_replicas": target, "user_config": LiveSettings.of(service()).document()}
    return {
        "applications": {
            NAME: {
                "status": status,
                "message": "",
                "deployed_app_config": {
                    "deployments": [{"name": "replica", **told, **settings}],
                },
                "deployments": {
                    "replica": {
                        "target_num_replicas": target,
                        "message": message,
                        "replicas": replicas,
                    }
                },
            }
        }
    }


def view(
    found: Mapping[str, Any], *pods: Mapping[str, Any], **answers: Mapping[str, Any]
) -> RayView:
    """The view of a RayService; `answers` are named for their clusters."""
    views: list[PodView] = [pod_view(one) for one in pods]
    return ray_view(found, views, answers, {})


def serving(replicas: int = 1, **changes: Any) -> RayView:
    """A RayService whose active cluster serves with so many replicas."""
    found = ray_service(active=digest("old", "RUNNING"), endpoints=replicas, **changes)
    running = answer(*["RUNNING"] * replicas, target=replicas)
    return view(found, pod("head", head=True), pod("worker"), old=running)


HEAD: Final = pod("head", head=True)
FORBIDDEN: Final = Problem("ApiForbidden", "the API server answered 403; allow it")


def facts(**changes: Any) -> Facts:
    """Facts of a reconcile about a service that serves; `changes` are fields of Facts."""
    known: dict[str, Any] = {
        "name": NAME,
        "namespace": NAMESPACE,
        "generation": 1,
        "previous": {},
        "service": service(),
        "ray": serving(),
        "last_change": T0,
        "now": T1,
    }
    return Facts(**{**known, **changes})


def reconciled() -> dict[str, Any]:
    """Return the status of a service whose last change is complete."""
    return status_document(facts())
