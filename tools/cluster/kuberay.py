"""Installs KubeRay into a cluster: what its Helm chart would, from the files of its Go module."""

from pathlib import Path
from typing import Any, Final

import yaml

from tools.cluster.build import Built, build_modules
from tools.cluster.cluster import Cluster
from tools.cluster.images import kuberay_image
from tools.cluster.modules import KUBERAY
from tools.cluster.paths import cache
from tools.cluster.progress import SILENT, Progress

NAMESPACE: Final = "kuberay-system"
NAME: Final = "kuberay-operator"
_TIMEOUT: Final = "120s"
_LABELS: Final = {
    "app.kubernetes.io/name": NAME,
    "app.kubernetes.io/instance": NAME,
    "app.kubernetes.io/component": NAME,
}
_NAMESPACED: Final = ("ServiceAccount", "Role", "RoleBinding")
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
        folder = _folder(build_modules(cache(), progress))
        cluster.kubectl("apply", "--server-side", "--filename", str(folder / "crds"))
        manifests = yaml.safe_dump_all([_namespace(), *_rbac(folder / "rbac"), deployment()])
        cluster.kubectl("apply", "--server-side", "--filename", "-", input=manifests)
        cluster.kubectl(
            *("wait", "--for=condition=Established", f"--timeout={_TIMEOUT}"),
            *("--filename", str(folder / "crds")),
        )
        cluster.kubectl(
            *("rollout", "status", f"deployment/{NAME}"),
            *(f"--namespace={NAMESPACE}", f"--timeout={_TIMEOUT}"),
        )


def _folder(built: Built) -> Path:
    return built.folders[KUBERAY.name]


def _namespace() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _rbac(folder: Path) -> list[dict[str, Any]]:
    texts = [(folder / name).read_text(encoding="utf-8") for name in _ROLES]
    return [place(document) for text in texts for document in yaml.safe_load_all(text)]


def place(document: dict[str, Any]) -> dict[str, Any]:
    """Put a document of the module's `config/rbac` into the namespace, as kustomize would."""
    if document["kind"] in _NAMESPACED:
        document["metadata"]["namespace"] = NAMESPACE
    for subject in document.get("subjects", []):
        subject["namespace"] = NAMESPACE
    return document


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
        "image": kuberay_image(),
        "imagePullPolicy": "IfNotPresent",
        "args": ["--enable-leader-election=false"],
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
