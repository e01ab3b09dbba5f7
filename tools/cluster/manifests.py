"""Installs what a Go module ships as YAML: put into its namespace, with images of ours."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from tools.cluster.cluster import Cluster

TIMEOUT: Final = "180s"
_NAMESPACED: Final = (
    "Deployment",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
)


def load(*files: Path) -> list[dict[str, Any]]:
    """Every document of the files."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def namespace(name: str) -> dict[str, Any]:
    """The namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def place(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Put a document and the subjects that it names into a namespace, as kustomize would."""
    if document["kind"] in _NAMESPACED:
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects", []):
        subject["namespace"] = namespace
    return document


def apply(cluster: Cluster, documents: Iterable[dict[str, Any]]) -> None:
    """Have Kubernetes make the documents true.

    Raises:
        ClusterError: it refuses one.
    """
    # A CRD can be too large for the annotation of a client-side apply.
    cluster.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--filename", "-"),
        input=yaml.safe_dump_all(documents),
    )


def apply_kinds(cluster: Cluster, folder: Path) -> None:
    """Apply the CRDs of a folder, and wait until their kinds are served.

    Raises:
        ClusterError: they are not served in time.
    """
    cluster.kubectl("apply", "--server-side", "--filename", str(folder))
    cluster.kubectl(
        *("wait", "--for=condition=Established", f"--timeout={TIMEOUT}"),
        *("--filename", str(folder)),
    )


def wait_available(cluster: Cluster, name: str, *, namespace: str) -> None:
    """Wait until an object, named as `kind/name`, is available.

    Raises:
        ClusterError: it is not in time.
    """
    cluster.kubectl(
        *("wait", "--for=condition=Available", name),
        *(f"--namespace={namespace}", f"--timeout={TIMEOUT}"),
    )
