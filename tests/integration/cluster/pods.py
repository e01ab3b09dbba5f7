"""Pods of the tests: short Python programs in the base image."""

import json
from typing import Any

from tools.cluster import Cluster

IMAGE = "localhost/tandem/base:1"
SERVER = """
import http.server, sys
http.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind="0.0.0.0")
"""


def manifest(name: str, program: str, **labels: str) -> dict[str, Any]:
    """A pod that runs `program` once."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name} | labels},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-c", program],
                }
            ],
        },
    }


def service(name: str) -> dict[str, Any]:
    """Port 80 of the pods whose label `app` is `name`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }


def apply(cluster: Cluster, *documents: dict[str, Any]) -> None:
    """Have Kubernetes make `documents` true."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    cluster.kubectl("apply", "--filename=-", input=text)


def run(cluster: Cluster, name: str, program: str, **labels: str) -> str:
    """Run a pod with `program` and return its output, whatever its exit code."""
    apply(cluster, manifest(name, program, **labels))
    cluster.kubectl(
        "wait", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", f"pod/{name}",
        "--timeout=120s",
    )  # fmt: skip
    output = cluster.kubectl("logs", name)
    cluster.kubectl("delete", "pod", name, "--wait=false")
    return output


def serve(cluster: Cluster, name: str) -> str:
    """Start a pod that answers HTTP behind a service; the service's address."""
    apply(cluster, manifest(name, SERVER), service(name))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    return cluster.kubectl("get", "service", name, "--output=jsonpath={.spec.clusterIP}")
