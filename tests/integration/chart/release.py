"""A release of the chart in a cluster, and what a test asks of it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from tests.integration.chart.helm import CHART, Helm, Object
from tests.patience import HANG_S
from tools.cluster import Cluster, ClusterError

NAME: Final = "tandem"
OPERATOR: Final = "tandem-operator"
CRD: Final = "inferenceservices.serving.tandem.dev"
_POLL_S: Final = 0.2

_T = TypeVar("_T")


def wait_for(what: str, look: Callable[[], _T | None]) -> _T:
    """Return the result of `look` as soon as it is true."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(_POLL_S)
    raise AssertionError(f"{what}: not within {HANG_S:.0f} s")


def isvc(name: str, *, source: str = "file:///models/tandem-tiny", **spec: Any) -> Object:
    """A small InferenceService."""
    return {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": source, "maxSeqLen": 256},
            "resources": {"cpu": 1, "memory": "1Gi"},
            **spec,
        },
    }


@dataclass(frozen=True)
class Release:
    """The release `tandem` in a namespace."""

    cluster: Cluster
    namespace: str
    values: Mapping[str, Any]

    @cached_property
    def helm(self) -> Helm:
        """Helm for this cluster."""
        return Helm(self.cluster.bin_dir / "helm", self.cluster.environment)

    def install(self, *args: str, **values: Any) -> str:
        """Install it and wait for the operator; return what helm says."""
        return self._change("install", "--create-namespace", *args, **values)

    def upgrade(self, *args: str, **values: Any) -> str:
        """Upgrade it and wait for the operator."""
        return self._change("upgrade", *args, **values)

    def rollback(self, revision: int) -> None:
        """Go back to a revision and wait for the operator."""
        self.helm.run("rollback", NAME, str(revision), *self._waiting())

    def uninstall(self) -> str:
        """Take it away; return what helm says."""
        return self.helm.run("uninstall", NAME, *self._waiting())

    def remove(self) -> None:
        """Leave nothing of it, whatever a test did."""
        self.helm.run("uninstall", NAME, "--ignore-not-found", *self._waiting())
        self.cluster.kubectl("delete", "crd", CRD, "--ignore-not-found", f"--timeout={HANG_S:.0f}s")
        # Replicas would first let their requests end.
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        self.cluster.kubectl(
            "delete", "namespace", self.namespace, "--ignore-not-found", f"--timeout={HANG_S:.0f}s"
        )

    def pods(self) -> list[Object]:
        """The operator's pods that are not on their way out."""
        items = self.get("pods", selector=f"app.kubernetes.io/name={OPERATOR}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def pod(self) -> str:
        """The uid of the operator's one pod."""
        (found,) = self.pods()
        uid: str = found["metadata"]["uid"]
        return uid

    def get(self, kind: str, name: str = "", *, selector: str = "") -> Object:
        """An object or a list of the release's namespace, or of the whole cluster."""
        named = [name] if name else []
        chosen = [f"--selector={selector}"] if selector else []
        read: Object = json.loads(self.kubectl("get", kind, *named, *chosen, "--output=json"))
        return read

    def names(self, kind: str, *, selector: str = "") -> list[str]:
        """The names of the objects of a kind."""
        return [item["metadata"]["name"] for item in self.get(kind, selector=selector)["items"]]

    def kubectl(self, *args: str) -> str:
        """Run kubectl in the release's namespace and return its output."""
        return self.cluster.kubectl(*args, f"--namespace={self.namespace}")

    def apply(self, manifest: Object, namespace: str | None = None) -> None:
        """`kubectl apply`."""
        where = namespace or self.namespace
        self.cluster.kubectl("apply", "-f", "-", f"-n={where}", input=json.dumps(manifest))

    def status(self, name: str, namespace: str | None = None) -> Object:
        """The status of an InferenceService; empty until the operator wrote one."""
        where = namespace or self.namespace
        text = self.cluster.kubectl("get", "isvc", name, f"--namespace={where}", "--output=json")
        status: Object = json.loads(text).get("status", {})
        return status

    def is_ready(self, name: str) -> bool:
        """Return True when the service's newest manifest serves."""
        found = self.get("isvc", name)
        status = found.get("status", {})
        ready = [one for one in status.get("conditions", []) if one["type"] == "Ready"]
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return current and bool(ready) and ready[0]["status"] == "True"

    def may(self, user: str, verb: str, kind: str, namespace: str | None = None) -> bool:
        """Return True when a user may do this; `kind` may name a subresource, as in pods/log."""
        # kubectl takes pods/log for a pod called log.
        resource, _, part = kind.partition("/")
        which = [resource, f"--subresource={part}"] if part else [resource]
        where = f"--namespace={namespace or self.namespace}"
        try:
            self.cluster.kubectl("auth", "can-i", verb, *which, where, f"--as={user}", "--quiet")
        except ClusterError:
            return False
        return True

    def _change(self, verb: str, *args: str, **values: Any) -> str:
        merged = merge(self.values, values)
        return self.helm.run(verb, NAME, str(CHART), *args, *self._waiting(), values=[merged])

    def _waiting(self) -> tuple[str, ...]:
        return (f"--namespace={self.namespace}", "--wait", f"--timeout={HANG_S:.0f}s")


@contextmanager
def placed(cluster: Cluster, namespace: str, values: Mapping[str, Any]) -> Iterator[Release]:
    """A place for a release, of which nothing stays."""
    release = Release(cluster=cluster, namespace=namespace, values=values)
    try:
        yield release
    finally:
        release.remove()


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values over values, as helm merges them, but lists follow each other."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            merged[name] = old + value
        else:
            merged[name] = value
    return merged
