"""A real Kubernetes for tests: the fixture `cluster`, shared by the tests of one folder.

A plugin; the conftest at the top registers it. When a test that has the cluster fails, what the
cluster holds then is part of the report.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.tiny import TINY
from tools.cluster import Cluster, ClusterError, unavailable

MODEL_ON_THE_NODE = "/models/tandem-tiny"

LEAVES_NOTHING: Final = ("integration/operator",)
"""Folders below tests/ whose tests leave a cluster as they found it, for those of the next one."""
_TESTS: Final = Path(__file__).parent
_KINDS: Final = ("isvc", "rayservices", "rayclusters", "pods")
_EVENTS: Final = 40
_WARNINGS: Final = 30
_WORDS: Final = "--request-timeout=10s"


class SharedCluster:
    """The cluster of the folder whose tests run now; a process of the run has one at a time."""

    def __init__(self) -> None:
        self._users: set[str] = set()
        self._cluster: Cluster | None = None

    def of(self, folder: str) -> Cluster:
        """Return the cluster of a folder below tests/, started unless one runs that is as new."""
        is_new = self._users <= {folder, *LEAVES_NOTHING}
        if self._cluster is None or not is_new or not Cluster.find(self._cluster.name):
            self.stop()
            self._cluster, self._users = start_cluster("test"), set()
        self._users.add(folder)
        return self._cluster

    def stop(self) -> None:
        """End it."""
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = None


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    """The one cluster of this process."""
    shared = SharedCluster()
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, shared_cluster: SharedCluster) -> Cluster:
    """The cluster of this module's folder; skips where none can run."""
    skip_without_cluster()
    return shared_cluster.of(request.path.parent.relative_to(_TESTS).as_posix())


def start_cluster(prefix: str) -> Cluster:
    """A cluster of this process's own, which ends with it even when it is killed."""
    return Cluster.start(
        f"{prefix}-{os.getpid()}", mounts={TINY: MODEL_ON_THE_NODE}, owner=os.getpid()
    )


def skip_without_cluster() -> None:
    """Skip a test on a machine that cannot run a cluster, with the sentence that says why."""
    sentence = unavailable()
    if sentence:
        pytest.skip(sentence)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the cluster holds to the report of a test that fails: a wait says what it saw."""
    report = yield
    found = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(found, Cluster):
        report.sections.append((f"the cluster after {call.when}", describe(found)))
    return report


def describe(cluster: Cluster) -> str:
    """Return a cluster's objects as kubectl prints them, with the last log lines of the operator
    and the last warnings of each Ray."""
    told = [_kubectl(cluster, "get", kind, "-A", "-o", "wide") for kind in _KINDS]
    told.append(_kubectl(cluster, "get", "isvc", "-A", "-o", "yaml"))
    events = _kubectl(cluster, "get", "events", "-A", "--sort-by=.lastTimestamp").splitlines()
    told.append("\n".join(events[-_EVENTS:]))
    selector = "--selector=app.kubernetes.io/name=tandem-operator"
    told.append(_kubectl(cluster, "logs", "-n", "tandem-system", selector, "--tail=40"))
    told += (_ray_warnings(cluster, head) for head in _heads(cluster))
    return "\n\n".join(told)


def _heads(cluster: Cluster) -> list[str]:
    """The Ray heads that run, as `namespace pod`."""
    columns = "--output=custom-columns=:metadata.namespace,:metadata.name"
    selector = "--selector=ray.io/node-type=head"
    lines = _kubectl(cluster, "get", "pods", "-A", selector, columns, "--no-headers").splitlines()
    return [line for line in lines if len(line.split()) == 2]


def _ray_warnings(cluster: Cluster, head: str) -> str:
    """What Serve's controller and Ray's control plane have warned of: whom they took for dead."""
    namespace, pod = head.split()[:2]
    script = (
        "cd /tmp/ray/session_latest/logs && grep -hE 'WARN|ERROR| [WE] ' serve/controller* "
        f"gcs_server.* | tail -n {_WARNINGS}"
    )
    text = _kubectl(
        cluster, "exec", "-n", namespace, pod, "-c", "ray-head", "--", "sh", "-c", script
    )
    return f"warnings of Ray in {pod}:\n{text}"


def _kubectl(cluster: Cluster, *arguments: str) -> str:
    try:
        return cluster.kubectl(_WORDS, *arguments).strip()
    except ClusterError as error:
        return str(error)
