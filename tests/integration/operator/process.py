"""The operator as a process of the test's own, and one namespace of the API server for it."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.harness import wait_for
from tests.patience import HANG_S
from tests.ports import free_port
from tools.cluster import Cluster

RESYNC_S = 1
WRITING = frozenset({"create", "patch", "update", "delete"})
SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test."""

    cluster: Cluster
    name: str

    def kubectl(self, *arguments: str, document: Any = None) -> str:
        """Run kubectl and return its output; `document` is its standard input."""
        given = None if document is None else json.dumps(document)
        return self.cluster.kubectl(f"--namespace={self.name}", *arguments, input=given)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object; None: it is not there."""
        text = self.kubectl("get", kind, name, "--ignore-not-found", "--output=json")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def list(self, kinds: str) -> list[dict[str, Any]]:
        """All objects of some kinds."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kinds, "--output=json"))[
            "items"
        ]
        return items

    def apply(self, *documents: Mapping[str, Any]) -> None:
        """`kubectl apply` of all of them at once."""
        given = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", document=given)

    def patch(self, kind: str, name: str, changes: Mapping[str, Any], *options: str) -> None:
        """`kubectl patch`, by merging."""
        text = json.dumps(changes)
        self.kubectl("patch", kind, name, "--type=merge", f"--patch={text}", *options)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """A condition of a service; empty: it has none."""
        found = self.get("isvc", name) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return next((one for one in conditions if one["type"] == kind), {})

    def has_condition(self, name: str, kind: str, reason: str) -> bool:
        return bool(self.condition(name, kind).get("reason") == reason)

    def children(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a service, as kind/name."""
        kinds = "rayservices,secrets,poddisruptionbudgets,networkpolicies"
        label = f"--selector=serving.tandem.dev/service={name}"
        items = json.loads(self.kubectl("get", kinds, label, "--output=json"))["items"]
        return {_child_name(item): item for item in items}

    def token_secret(self, name: str) -> str:
        """The Secret with the token of a service's Ray."""
        return str(self.children(name)[f"Secret/{name}-token"]["metadata"]["name"])

    def versions(self) -> dict[str, str]:
        """The resource version of everything that the operator writes."""
        kinds = "isvc,rayservices,secrets,poddisruptionbudgets,networkpolicies,events"
        return {
            f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for one in self.list(kinds)
            if one["kind"] != "Event" or one["involvedObject"]["kind"] == "InferenceService"
        }


@contextmanager
def watch_service(namespace: Namespace, name: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Every version of a service from now on, as it comes."""
    process = subprocess.Popen(
        [
            str(namespace.cluster.bin_dir / "kubectl"), f"--namespace={namespace.name}", "get",
            "isvc", name, "--watch", "--output=json",
        ],
        env=namespace.cluster.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    versions = _documents(process.stdout)
    # The one that is there comes first: from here on nothing is missed.
    next(versions)
    try:
        yield versions
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _documents(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    text = ""
    for line in lines:
        text += line
        if line.rstrip() == "}":
            yield json.loads(text)
            text = ""


def _child_name(child: Mapping[str, Any]) -> str:
    """kind/name; of the token's Secret without the hash at its end."""
    kind, name = child["kind"], child["metadata"]["name"]
    return f"{kind}/{name.rpartition('-')[0] if kind == 'Secret' else name}"


def children_of(name: str) -> set[str]:
    """Objects of a complete service."""
    return {
        f"RayService/{name}",
        f"Secret/{name}-token",
        f"PodDisruptionBudget/{name}",
        f"NetworkPolicy/{name}-head",
        f"NetworkPolicy/{name}-worker",
    }


def manifest(name: str = "tiny", **spec: Any) -> dict[str, Any]:
    """The smallest InferenceService, with some of its spec."""
    return {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/tandem-tiny"}, **spec},
    }


@dataclass
class OperatorProcess:
    """`tandem-operator`, on this machine."""

    namespace: Namespace
    folder: Path
    identity: str
    options: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    _numbers = itertools.count()

    def start(self) -> "OperatorProcess":
        number = next(self._numbers)
        config = self.folder / f"settings-{number}.yaml"
        config.write_text(yaml.safe_dump(self._settings()))
        self.log = self.folder / f"{self.identity}-{number}.log"
        environment = self.namespace.cluster.environment
        if self.kubeconfig:
            environment = {**environment, "KUBECONFIG": str(self.kubeconfig)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "tandem_operator", f"--config={config}",
                    f"--port={self.port}", f"--identity={self.identity}",
                    f"--namespace={self.namespace.name}",
                    f"--lease-namespace={self.namespace.name}", *self.options,
                ],
                env=environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self

    def _settings(self) -> dict[str, Any]:
        base = {
            "replica": {"image": "registry/tandem:1"},
            "resyncSeconds": RESYNC_S,
            "allowHostPath": True,
        }
        return {**base, **self.settings}

    @property
    def alive(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def wait_until_leading(self) -> "OperatorProcess":
        wait_for(lambda: self.health().get("leader") is True, f"{self.identity} leads")
        return self

    def health(self) -> dict[str, Any]:
        """Return the answer of /healthz; empty: none yet."""
        assert self.alive.poll() is None, self.log.read_text()
        found: dict[str, Any] = json.loads(self._get("/healthz") or "{}")
        return found

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The series of a metric, by their labels."""
        found = {}
        for line in self._get("/metrics").splitlines():
            sample = SAMPLE.match(line)
            if sample and sample["name"] == f"tandem_operator_{name}":
                labels = tuple(sorted(LABEL.findall(sample["labels"] or "")))
                found[labels] = float(sample["value"])
        return found

    def value(self, name: str) -> float:
        """A metric, over all its labels."""
        return sum(self.samples(name).values())

    def writes(self) -> float:
        """Requests that have written anything but the lease: what is there already is not made."""
        return sum(
            count
            for labels, count in self.samples("api_requests_total").items()
            if dict(labels)["verb"] in WRITING
            and dict(labels)["resource"] != "leases"
            and dict(labels)["code"] != "409"
        )

    def reads(self) -> float:
        """Requests that have read one object, but for the lease; a resync lists."""
        return sum(
            count
            for labels, count in self.samples("api_requests_total").items()
            if dict(labels)["verb"] == "get" and dict(labels)["resource"] != "leases"
        )

    def refused(self) -> set[str]:
        """Return the requests that the API server did not allow."""
        return {
            f"{dict(labels)['verb']} {dict(labels)['resource']}"
            for labels in self.samples("api_requests_total")
            if dict(labels)["code"] in {"401", "403"}
        }

    def wait_for_resyncs(self, count: int = 1) -> None:
        """Until so many resyncs have begun and ended from now on, with all that they asked for."""
        for _ in range(count + 1):
            self._wait_for_resync()
        wait_for(self.is_idle, "nothing waits")

    def _wait_for_resync(self) -> None:
        before = self.value("last_resync_timestamp_seconds")
        wait_for(lambda: self.value("last_resync_timestamp_seconds") > before, "a resync ends")

    def is_idle(self) -> bool:
        return self.health().get("queue") == {"depth": 0, "running": 0}

    def terminate(self) -> int:
        """SIGTERM; gives the exit code."""
        self.alive.send_signal(signal.SIGTERM)
        return self.alive.wait(timeout=HANG_S)

    def kill(self) -> None:
        """SIGKILL."""
        self.alive.kill()
        self.alive.wait()

    def wait_for_end(self) -> int:
        return self.alive.wait(timeout=HANG_S)

    def resident_bytes(self) -> int:
        text = Path(f"/proc/{self.alive.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) * 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.alive.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _get(self, path: str) -> str:
        try:
            return httpx.get(
                f"http://127.0.0.1:{self.port}{path}", trust_env=False, timeout=HANG_S
            ).text
        except httpx.TransportError:
            return ""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition of the cluster."""
    wait_for(lambda: bool(condition()), what)


def settle(namespace: Namespace, operator: OperatorProcess, name: str = "tiny") -> None:
    """Until everything of a service is there, and it is KubeRay's turn."""
    until(lambda: children_of(name) <= set(namespace.children(name)), "its children are there")
    until(lambda: namespace.has_condition(name, "RayReady", "NotObserved"), "KubeRay's turn")
    until(operator.is_idle, "nothing waits")


def end_all(processes: Iterable[OperatorProcess]) -> None:
    """Leave no process behind."""
    for one in processes:
        if one.process is not None and one.process.poll() is None:
            one.process.send_signal(signal.SIGCONT)
            one.kill()


def measured(seconds: float, read: Callable[[], float]) -> float:
    """Return the growth of a counter per second, over so many seconds."""
    before = read()
    began = time.monotonic()
    time.sleep(seconds)
    return (read() - before) / (time.monotonic() - began)
