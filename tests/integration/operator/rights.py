"""A service account with the operator's rights, and a kubeconfig for it."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from tests.integration.operator.process import Namespace

# As the chart gives them: where services live, and where the operator does.
RULES: list[dict[str, Any]] = [
    {
        "apiGroups": ["serving.tandem.dev"],
        "resources": ["inferenceservices"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["serving.tandem.dev"],
        "resources": ["inferenceservices/status"],
        "verbs": ["get", "patch"],
    },
    {
        "apiGroups": ["serving.tandem.dev"],
        "resources": ["inferenceservices/scale"],
        "verbs": ["patch"],
    },
    {
        "apiGroups": ["ray.io"],
        "resources": ["rayservices"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["services"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "create", "patch"]},
    {
        "apiGroups": ["policy"],
        "resources": ["poddisruptionbudgets"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {
        "apiGroups": ["monitoring.coreos.com"],
        "resources": ["prometheusrules"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
]
HOME_RULES: list[dict[str, Any]] = [
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["tandem-operator-token-key"],
        "verbs": ["get"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
]


def without(resource: str) -> list[dict[str, Any]]:
    """All the rights but those on one kind of object."""
    rules = copy.deepcopy(RULES)
    return [rule for rule in rules if resource not in rule["resources"]]


def grant(namespace: Namespace, rules: list[dict[str, Any]], folder: Path) -> Path:
    """Give a new service account these rights, and those of its home, in its namespace alone.

    Returns:
        Its kubeconfig.
    """
    metadata = {"name": "operator", "namespace": namespace.name}
    namespace.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    bind(namespace, [*rules, *HOME_RULES], namespace)
    token = namespace.kubectl("create", "token", "operator").strip()
    return _kubeconfig(namespace, token, folder)


def bind(home: Namespace, rules: list[dict[str, Any]], namespace: Namespace) -> None:
    """Give the service account of `home` these rights in another namespace, or its own."""
    metadata = {"name": "operator", "namespace": namespace.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": home.name}
    rbac = "rbac.authorization.k8s.io/v1"
    namespace.apply(
        {"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    )


def _kubeconfig(namespace: Namespace, token: str, folder: Path) -> Path:
    """The administrator's kubeconfig, with the token in place of the administrator."""
    text = namespace.cluster.kubectl("config", "view", "--raw", "--output=json")
    config = json.loads(text)
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "operator-kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
