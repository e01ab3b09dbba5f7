"""Requests of a service account to the API server, from the API server's own audit log."""

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.patience import HANG_S
from tools.cluster import Cluster, ClusterError, commands
from tools.cluster.config import API_PORT
from tools.cluster.rootfs import NODE

PORT: Final = API_PORT + 1
_CREATED: Final = 201
_FORBIDDEN: Final = 403


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one kind of object."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}.{self.group or 'core'}"


@dataclass(frozen=True)
class Audited:
    """A second API server over the same data, which writes down what one account asks of it."""

    cluster: Cluster
    log: Path
    host: str
    port: int

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002
        """kubectl through this API server."""
        server = f"--server=https://{self.host}:{self.port}"
        return self.cluster.kubectl(*args, server, input=input)

    def used(self) -> set[Right]:
        """Every right that was used."""
        return {right for event in self._events() for right in _rights(event)}

    def refused(self) -> list[str]:
        """Every request that was forbidden."""
        return [
            event["requestURI"]
            for event in self._events()
            if event.get("responseStatus", {}).get("code") == _FORBIDDEN
        ]

    def _events(self) -> list[dict[str, Any]]:
        # The last line may be half written.
        lines = self.log.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]


def allowed(rules: Iterable[dict[str, Any]]) -> set[Right]:
    """Every right that the rules of a role give."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@contextmanager
def audited(cluster: Cluster, account: str, folder: Path) -> Iterator[Audited]:
    """A second API server for what `account` does; `folder` must be one that the node sees.

    It also requires the right `update` on `finalizers` of a client that creates an object which
    blocks its owner's deletion, as OpenShift does.
    """
    found = Audited(cluster, folder / "audit.log", str(cluster.addresses.node), PORT)
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(_policy(account)), encoding="utf-8")
    command = [
        *commands.command_lines(cluster.files, cluster.addresses, NODE)[commands.API_SERVER],
        f"--secure-port={PORT}",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        # `kubernetes.default` stays with the first one.
        "--endpoint-reconciler-type=none",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={found.log}",
    ]
    with (folder / "apiserver.log").open("wb") as output:
        process = subprocess.Popen(
            cluster.node_command(command),
            env=cluster.node_environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(found, process)
        yield found
    finally:
        # What it started on the node ends with the cluster at the latest.
        process.terminate()
        process.wait()


def _policy(account: str) -> dict[str, Any]:
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        # A watch ends late; its other stages say the same.
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [account]}, {"level": "None"}],
    }


def _wait_until_ready(api: Audited, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (api.log.parent / "apiserver.log").read_text()[-2000:]
        try:
            api.kubectl("get", "--raw", "/readyz")
        except ClusterError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"the second API server is not ready within {HANG_S:.0f} s")


def _rights(event: dict[str, Any]) -> Iterator[Right]:
    """The rights that a request used; server-side apply of what was not there creates it."""
    target = event.get("objectRef", {})
    if "resource" not in target:
        return
    resource = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
    group = target.get("apiGroup", "")
    yield Right(group, resource, event["verb"])
    if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == _CREATED:
        yield Right(group, resource, "create")
