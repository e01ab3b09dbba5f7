"""Installs monitoring into a cluster: the Prometheus operator, a Prometheus, an Alertmanager.

The Prometheus takes the monitors and rules of every namespace. The operator labels its pod
`app.kubernetes.io/name: prometheus`, which is what Tandem's chart lets in by default.
"""

from pathlib import Path
from typing import Any, Final

from tools.cluster.build import Built, build_modules
from tools.cluster.cluster import Cluster
from tools.cluster.images import Image, pack_program, pinned_version, program_image
from tools.cluster.manifests import apply, apply_kinds, load, namespace, place, wait_available
from tools.cluster.modules import (
    ALERTMANAGER,
    MONITORING_MODULES,
    PROMETHEUS,
    PROMETHEUS_OPERATOR,
)
from tools.cluster.paths import cache
from tools.cluster.progress import SILENT, Progress

NAMESPACE: Final = "monitoring"
PROMETHEUS_URL: Final = f"http://prometheus-operated.{NAMESPACE}.svc:9090"
"""Address of Prometheus inside the cluster."""
_GROUP: Final = "monitoring.coreos.com/v1"
_OPERATOR: Final = "prometheus-operator"
_NAME: Final = "prometheus"
_ALERTMANAGER: Final = "alertmanager"
_FILES: Final = ("service-account", "cluster-role", "cluster-role-binding", "deployment")
_SELECTED: Final = ("podMonitor", "probe", "rule", "scrapeConfig", "serviceMonitor")
_USER: Final = 65532
_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_LITTLE: Final = {"requests": {"cpu": "20m", "memory": "64Mi"}}


def images() -> dict[str, Image]:
    """The images by the program that each holds."""
    return {
        # /prometheus and /alertmanager are the folders of their data.
        "prometheus": program_image("prometheus", PROMETHEUS, "/bin/prometheus"),
        "alertmanager": program_image("alertmanager", ALERTMANAGER, "/bin/alertmanager"),
        _OPERATOR: program_image(_OPERATOR, PROMETHEUS_OPERATOR, "/operator"),
        # The operator names this path in the pods that it makes.
        "prometheus-config-reloader": program_image(
            "prometheus-config-reloader", PROMETHEUS_OPERATOR, "/bin/prometheus-config-reloader"
        ),
    }


def install(cluster: Cluster, progress: Progress = SILENT) -> None:
    """Install monitoring, and wait until all of it is available; again is harmless.

    Raises:
        ClusterError: a part cannot be built, or does not become available.
    """
    built = build_modules(cache(), progress, MONITORING_MODULES)
    with progress.phase("install the Prometheus operator, Prometheus and Alertmanager"):
        for program, image in images().items():
            cluster.import_image(pack_program(cache(), image, built.programs[program]))
        folder = _folder(built)
        apply_kinds(cluster, folder / "crds")
        apply(cluster, [namespace(NAMESPACE), *operator(folder / "rbac"), *prometheus_rights()])
        wait_available(cluster, f"deployment/{_OPERATOR}", namespace=NAMESPACE)
        apply(cluster, [prometheus(), alertmanager()])
        for name in (f"prometheus/{_NAME}", f"alertmanager/{_ALERTMANAGER}"):
            wait_available(cluster, name, namespace=NAMESPACE)


def _folder(built: Built) -> Path:
    return built.folders[PROMETHEUS_OPERATOR.name]


def operator(folder: Path) -> list[dict[str, Any]]:
    """The operator of the module's example, with images of ours."""
    documents = load(*(folder / f"{_OPERATOR}-{name}.yaml" for name in _FILES))
    for document in documents:
        place(document, NAMESPACE)
        if document["kind"] == "Deployment":
            _use_images(document)
    return documents


def _use_images(deployment: dict[str, Any]) -> None:
    by_program = images()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["image"] = by_program[_OPERATOR].reference
    reloader = by_program["prometheus-config-reloader"].reference
    # No flag for the kubelet's endpoints: nothing here scrapes the kubelet.
    container["args"] = [f"--prometheus-config-reloader={reloader}"]
    container["resources"] = _LITTLE


def prometheus_rights() -> list[dict[str, Any]]:
    """The account of Prometheus, which may list what it scrapes in every namespace."""
    authorization = "rbac.authorization.k8s.io"
    discovered = ["pods", "services", "endpoints", "nodes", "nodes/metrics"]
    watch = ["get", "list", "watch"]
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": _NAME, "namespace": NAMESPACE},
        },
        {
            "apiVersion": f"{authorization}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": _NAME},
            "rules": [
                {"apiGroups": [""], "resources": discovered, "verbs": watch},
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": watch,
                },
                {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
            ],
        },
        {
            "apiVersion": f"{authorization}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NAME},
            "roleRef": {"apiGroup": authorization, "kind": "ClusterRole", "name": _NAME},
            "subjects": [{"kind": "ServiceAccount", "name": _NAME, "namespace": NAMESPACE}],
        },
    ]


def prometheus() -> dict[str, Any]:
    """One Prometheus for the whole cluster."""
    selectors: dict[str, Any] = {}
    for kind in _SELECTED:
        selectors |= {f"{kind}Selector": {}, f"{kind}NamespaceSelector": {}}
    alertmanagers = [{"namespace": NAMESPACE, "name": "alertmanager-operated", "port": "web"}]
    spec = _server(images()["prometheus"], prometheus_version(pinned_version(PROMETHEUS)))
    spec |= {
        "serviceAccountName": _NAME,
        "evaluationInterval": "15s",
        "alerting": {"alertmanagers": alertmanagers},
        **selectors,
    }
    return _custom("Prometheus", _NAME, spec)


def alertmanager() -> dict[str, Any]:
    """One Alertmanager, which notifies no receiver until an AlertmanagerConfig names one."""
    spec = _server(images()["alertmanager"], pinned_version(ALERTMANAGER))
    spec |= {"alertmanagerConfigSelector": {}, "alertmanagerConfigNamespaceSelector": {}}
    return _custom("Alertmanager", _ALERTMANAGER, spec)


def prometheus_version(module_version: str) -> str:
    """The release of a module's version: as a Go module v3.15.0 is v0.315.0."""
    _, minor, patch = module_version.removeprefix("v").split(".")
    return f"v{int(minor) // 100}.{int(minor) % 100}.{patch}"


def _server(image: Image, version: str) -> dict[str, Any]:
    return {
        "replicas": 1,
        "image": image.reference,
        "imagePullPolicy": "IfNotPresent",
        # By this, not by the image, the operator chooses flags and fields.
        "version": version,
        "securityContext": _SECURITY,
        "resources": _LITTLE,
    }


def _custom(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": _GROUP, "kind": kind, "metadata": metadata, "spec": spec}
