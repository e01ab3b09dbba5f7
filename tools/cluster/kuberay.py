"""Installs KubeRay into a cluster: what its Helm chart would, from the files of its Go module."""

from typing import Any, Final

from tools.cluster.build import build_modules
from tools.cluster.cluster import Cluster
from tools.cluster.images import kuberay_image
from tools.cluster.manifests import apply, apply_kinds, load, namespace, place, wait_available
from tools.cluster.modules import KUBERAY
from tools.cluster.paths import cache
from tools.cluster.progress import SILENT, Progress

NAMESPACE: Final = "kuberay-system"
NAME: Final = "kuberay-operator"
_LABELS: Final = {
    "app.kubernetes.io/name": NAME,
    "app.kubernetes.io/instance": NAME,
    "app.kubernetes.io/component": NAME,
}
_ROLES: Final = (
    "role.yaml",
    "role_binding.yaml",
    "leader_election_role.yaml",
    "leader_election_role_binding.yaml",
    "service_account.yaml",
)


def install(cluster: Cluster, progress: Progress = SILENT) -> None:
    """Install KubeRay's operator and wait until it is available; again is harmless.

    Raises:
        ClusterError: it does not become available.
    """
    with progress.phase("install KubeRay"):
        # It was built before the cluster started, so this only looks it up.
        folder = build_modules(cache(), progress).folders[KUBERAY.name]
        apply_kinds(cluster, folder / "crds")
        roles = load(*(folder / "rbac" / name for name in _ROLES))
        placed = [place(document, NAMESPACE) for document in roles]
        apply(cluster, [namespace(NAMESPACE), *placed, deployment()])
        wait_available(cluster, f"deployment/{NAME}", namespace=NAMESPACE)


def deployment() -> dict[str, Any]:
    """The operator, with the labels that its Helm chart gives it."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _LABELS},
            "template": {
                "metadata": {"labels": _LABELS},
                "spec": {
                    "serviceAccountName": NAME,
                    "terminationGracePeriodSeconds": 5,
                    "containers": [_container()],
                },
            },
        },
    }


def _container() -> dict[str, Any]:
    return {
        "name": NAME,
        "image": kuberay_image().reference,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--enable-leader-election=false"],
        # As docs/guides/kubernetes.md installs it: Tandem's workers wait for their head themselves.
        "env": [{"name": "ENABLE_INIT_CONTAINER_INJECTION", "value": "false"}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/metrics", "port": "http"}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    }
