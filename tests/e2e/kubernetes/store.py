"""A Redis in the tests' Kubernetes, behind a password and a policy that lets in Ray heads alone."""

from typing import Any

from tests.e2e.kubernetes.harness import NAMESPACE
from tools.kubernetes import Kubernetes

NAMESPACE_OF_STORES = "storage"
SECRET = "redis"  # noqa: S105  # its name
PORT = 6379
_PASSWORD = {"password": "a-password-of-the-tests"}
_LABELS = {"app": "redis"}
# The node's own /usr has Redis in it; the container's is of the same release.
_USR = "usr"


def options() -> dict[str, Any]:
    """`gcsFaultToleranceOptions` of a service that keeps its control plane there."""
    reference = {"name": SECRET, "key": "password"}
    return {
        "redisAddress": f"redis.{NAMESPACE_OF_STORES}.svc:{PORT}",
        "redisPassword": {"valueFrom": {"secretKeyRef": reference}},
    }


def start(kubernetes: Kubernetes) -> None:
    """Start it, and wait until it answers."""
    kubernetes.kubectl("create", "namespace", NAMESPACE_OF_STORES)
    for manifest in (
        _secret(NAMESPACE), _secret(NAMESPACE_OF_STORES), _service(), _policy(), _pod(),
    ):  # fmt: skip
        kubernetes.apply(manifest)
    kubernetes.kubectl(
        "wait", "-n", NAMESPACE_OF_STORES, "--for=condition=Ready", "pod/redis", "--timeout=60s"
    )


def stop(kubernetes: Kubernetes) -> None:
    """Take it away, with all that it knows."""
    kubernetes.kubectl("delete", "namespace", NAMESPACE_OF_STORES)
    kubernetes.kubectl("delete", "secret", SECRET)


def keys(kubernetes: Kubernetes) -> list[str]:
    """The names of what it keeps."""
    command = ("redis-cli", "-a", _PASSWORD["password"], "--no-auth-warning", "keys", "*")
    done = kubernetes.kubectl("exec", "-n", NAMESPACE_OF_STORES, "redis", "--", *command)
    return done.split()


def _secret(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "stringData": _PASSWORD,
    }


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "redis", "namespace": NAMESPACE_OF_STORES},
        "spec": {"selector": _LABELS, "ports": [{"port": PORT}]},
    }


def _policy() -> dict[str, Any]:
    """That of docs/guides/kubernetes.md."""
    heads = {
        "app.kubernetes.io/managed-by": "tandem-operator",
        "app.kubernetes.io/component": "head",
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "ray-heads", "namespace": NAMESPACE_OF_STORES},
        "spec": {
            "podSelector": {"matchLabels": _LABELS},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": heads}}],
                    "ports": [{"port": PORT}],
                }
            ],
        },
    }


def _pod() -> dict[str, Any]:
    container = {
        "name": "redis",
        "image": "localhost/tandem/base:1",
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/redis-server"],
        "args": ["--requirepass", "$(PASSWORD)", "--save", ""],
        "env": [
            {
                "name": "PASSWORD",
                "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "password"}},
            }
        ],
        "securityContext": {"runAsUser": 1000},
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": _USR, "mountPath": "/usr", "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "redis", "namespace": NAMESPACE_OF_STORES, "labels": _LABELS},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": _USR, "hostPath": {"path": "/usr"}}],
        },
    }
