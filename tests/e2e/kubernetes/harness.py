"""A Kubernetes with Tandem in it, as `kubectl` and a client on this machine see it."""

import base64
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.harness import wait_for
from tests.tiny import TINY
from tools.cluster import Cluster
from tools.kubernetes import CommandFailed, Kubernetes
from tools.up import NAMESPACE as OPERATOR_NAMESPACE

NAMESPACE = "default"
KINDS = (
    "all", "secrets", "configmaps", "networkpolicies", "poddisruptionbudgets", "rayservices",
    "rayclusters", "roles", "rolebindings", "serviceaccounts",
)  # fmt: skip
REPLICA_METRICS_PORT = 9464
# Prints the start of each command line, the whole pod's where its containers share processes.
PROCESSES = "for one in /proc/[0-9]*/cmdline; do head -c 90 $one | tr '\\0' ' '; echo; done"


@dataclass(frozen=True)
class DeployedService:
    """One InferenceService."""

    kubernetes: Kubernetes
    name: str

    @property
    def found(self) -> dict[str, Any]:
        found = self.kubernetes.get("inferenceservice", self.name)
        assert found is not None, f"{self.name} is not there"
        return found

    @property
    def url(self) -> str:
        """The endpoint as this machine reaches it: the address of the Service."""
        service = self.kubernetes.get("service", self.name)
        assert service is not None
        return f"http://{service['spec']['clusterIP']}:8000"

    def apply(self, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
        """Apply the example's manifest under this name, changed."""
        document = tiny_manifest(self.name)
        change(document)
        self.kubernetes.apply(document)

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition of its status; empty: it has none."""
        conditions = self.found.get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})

    def is_ready(self) -> bool:
        """Return True when the version that was applied last serves, with all of its replicas."""
        found = self.found
        status = found.get("status", {})
        replicas = status.get("replicas", {})
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and self.condition("Ready").get("status") == "True"
            and self.condition("Progressing").get("status") == "False"
            and "pendingChange" not in status
            and replicas.get("ready") == replicas.get("desired")
        )

    def wait_ready(self) -> None:
        wait_for(
            self.is_ready,
            f"{self.name} is Ready",
            instead=lambda: self.kubernetes.kubectl("get", "isvc,rayclusters,pods", "-o", "wide"),
        )

    def wait_for_replicas(self, count: int) -> None:
        def has() -> bool:
            replicas = self.found.get("status", {}).get("replicas", {})
            return bool(replicas.get("ready") == replicas.get("desired") == count)

        wait_for(has, f"{self.name} has {count} replicas")

    def pods(self, component: str = "worker") -> list[dict[str, Any]]:
        selector = f"serving.tandem.dev/service={self.name},app.kubernetes.io/component={component}"
        return self.kubernetes.list("pods", selector)

    def serving_pods(self, component: str = "worker") -> list[dict[str, Any]]:
        """Return the pods of the RayCluster that serves; a replaced one has pods for a while.

        A RayService that has just been made has no cluster that serves, and so no such pods.
        """
        rayservice = self.kubernetes.get("rayservice", self.name)
        assert rayservice is not None, f"RayService {self.name} is not there"
        active = rayservice.get("status", {}).get("activeServiceStatus", {})
        serving = active.get("rayClusterName")
        return [
            pod
            for pod in self.pods(component)
            if pod["metadata"]["labels"]["ray.io/cluster"] == serving
        ]

    def pod_uids(self, component: str = "worker") -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(component)}

    def token_secret(self) -> str:
        """The name of the Secret with Ray's token."""
        found = self.kubernetes.get("rayservice", self.name)
        assert found is not None
        secret: str = found["spec"]["rayClusterConfig"]["authOptions"]["secretName"]
        return secret

    def ray_token(self) -> str:
        """The token that Ray's own interfaces ask for."""
        found = self.kubernetes.get("secret", self.token_secret())
        assert found is not None
        return base64.b64decode(found["data"]["auth_token"]).decode()

    def delete(self) -> None:
        self.kubernetes.kubectl("delete", "inferenceservice", self.name, "--ignore-not-found")

    def leftovers(self) -> list[str]:
        """Return its objects that still exist in the namespace."""
        kinds = ",".join(KINDS)
        names = self.kubernetes.kubectl("get", kinds, "-o", "name").split()
        return [one for one in names if one.partition("/")[2].startswith(self.name)]

    def wait_gone(self) -> None:
        """Wait until the garbage collector and the kubelet have cleared it away."""
        wait_for(
            lambda: not self.leftovers(),
            f"nothing is left of {self.name}",
            instead=self._what_lingers,
        )

    def _what_lingers(self) -> str:
        """The objects that are left, and last what their pods still run."""
        left = self.leftovers()
        told = [self.kubernetes.kubectl("describe", *left)] if left else []
        for pod in (one for one in left if one.startswith("pod/")):
            try:
                told += [pod, self.kubernetes.kubectl("exec", pod, "--", "sh", "-c", PROCESSES)]
            except CommandFailed as error:
                told.append(str(error))
        return "\n".join([*told, *left])

    def answers(self) -> bool:
        """Return True when the endpoint answers at all."""
        try:
            return httpx.get(f"{self.url}/health", trust_env=False, timeout=5).is_success
        except httpx.TransportError:
            return False


@dataclass(frozen=True)
class Checkpoint:
    """A copy of tandem-tiny at a path of its own, which the node sees as well."""

    folder: Path

    @property
    def weights(self) -> Path:
        """The file with the tensors."""
        return self.folder / "model.safetensors"

    def repair(self) -> None:
        """Make it tandem-tiny again, at once: no reader gets half a file."""
        whole = self.folder / "whole"
        shutil.copyfile(TINY / self.weights.name, whole)
        whole.replace(self.weights)


@dataclass(frozen=True)
class OperatorProcess:
    """The operator that leads."""

    cluster: Cluster
    kubernetes: Kubernetes

    def kill(self) -> None:
        """SIGKILL: it ends between any two of its writes, and has ended when this returns."""
        lost = self.pids()
        assert lost, "the operator does not run, so it cannot be killed"
        signalled = self.cluster.run(["kill", "-KILL", *lost])
        assert signalled.returncode == 0, signalled.stderr
        wait_for(lambda: not lost & self.pids(), "the operator's process has ended")

    def pids(self) -> set[str]:
        """Processes of the operator, by the node's numbers."""
        return set(self.cluster.run(["pgrep", "-f", "bin/tandem-operator"]).stdout.split())

    def log(self) -> str:
        """What it has logged since its process began."""
        selector = "--selector=app.kubernetes.io/name=tandem-operator"
        namespace = f"--namespace={OPERATOR_NAMESPACE}"
        return self.kubernetes.kubectl("logs", namespace, selector, "--tail=-1")

    def wait_until_available(self) -> None:
        wait_for(lambda: bool(self.pids()), "the operator runs")
        self.kubernetes.kubectl(
            "wait", f"--namespace={OPERATOR_NAMESPACE}", "--for=condition=Available",
            "deployment/tandem-operator", "--timeout=120s",
        )  # fmt: skip


def tiny_manifest(name: str) -> dict[str, Any]:
    """The manifest of the examples, under another name."""
    document: dict[str, Any] = yaml.safe_load((TINY / "isvc.yaml").read_text())
    document["metadata"]["name"] = name
    return document


def metrics_of(pod: dict[str, Any], port: int) -> str:
    """Metrics of a pod, as Prometheus reads them."""
    url = f"http://{pod['status']['podIP']}:{port}/metrics"
    return httpx.get(url, timeout=30, trust_env=False).text


def sum_of_metric(text: str, name: str, label: str = "") -> float:
    """Sum of a metric's series that have a label."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(f"{name}{{") and label in line
    )
