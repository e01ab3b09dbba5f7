"""Installs KEDA into a cluster: its operator and its server of external metrics.

Its admission webhooks are left out: they only refuse a ScaledObject that contradicts another.
"""

from pathlib import Path
from typing import Any, Final

from tools.cluster.build import build_modules
from tools.cluster.cluster import Cluster
from tools.cluster.images import Image, pack_program, program_image
from tools.cluster.manifests import apply, apply_kinds, load, wait_available
from tools.cluster.modules import KEDA
from tools.cluster.paths import cache
from tools.cluster.progress import SILENT, Progress

NAMESPACE: Final = "keda"
_API: Final = "apiservice/v1beta1.external.metrics.k8s.io"
_OPERATOR: Final = "keda-operator"
_SERVER: Final = "keda-metrics-apiserver"
_FILES: Final = (
    "general/namespace.yaml",
    "service_account/service_account.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "manager/manager.yaml",
    "manager/service.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
    "metrics-server/deployment.yaml",
    "metrics-server/service.yaml",
    "metrics-server/api_service.yaml",
)
_NO_WEBHOOKS: Final = "--enable-webhook-patching=false"


def images() -> dict[str, Image]:
    """The images by the name of the Deployment that runs each."""
    return {
        _OPERATOR: program_image("keda", KEDA, "/keda"),
        _SERVER: program_image(_SERVER, KEDA, "/keda-adapter"),
    }


def install(cluster: Cluster, progress: Progress = SILENT) -> None:
    """Install KEDA and wait until the API server gets external metrics from it; again is harmless.

    Raises:
        ClusterError: a part cannot be built, or does not become available.
    """
    built = build_modules(cache(), progress, (KEDA,))
    with progress.phase("install KEDA"):
        by_name, programs = images(), built.programs
        for name, program in ((_OPERATOR, "keda"), (_SERVER, _SERVER)):
            cluster.import_image(pack_program(cache(), by_name[name], programs[program]))
        config = built.folders[KEDA.name] / "config"
        apply_kinds(cluster, config / "crd/bases")
        apply(cluster, documents(config))
        for name in (f"deployment/{_OPERATOR}", f"deployment/{_SERVER}", _API):
            wait_available(cluster, name, namespace=NAMESPACE)


def documents(config: Path) -> list[dict[str, Any]]:
    """The documents of the module's `config`, with images of ours."""
    documents = load(*(config / name for name in _FILES))
    for document in documents:
        if document["kind"] == "Deployment":
            _adapt(document)
    return documents


def _adapt(deployment: dict[str, Any]) -> None:
    name = deployment["metadata"]["name"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["image"] = images()[name].reference
    container["imagePullPolicy"] = "IfNotPresent"
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}
    if name == _OPERATOR:
        container["args"].append(_NO_WEBHOOKS)
