"""A node leaves a real Ray cluster, and the head sees it go."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

import pytest

from tandem_serve.api.ray_env import RAY_ENV
from tandem_serve.local.ports import Ports, free_ports
from tandem_serve.pod.drain import (
    DASHBOARD,
    Raylet,
    drain_head,
    drain_node,
    find_raylets,
    worker_addresses,
)
from tandem_serve.processes import descendants, kill_all, read_process
from tests.e2e.harness import wait_for
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COMMON = (
    *("--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1"),
    *("--num-cpus=1", "--object-store-memory=80000000"),
)
WORKER_PORTS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
)


@pytest.fixture
def ports() -> Ports:
    return free_ports()


@pytest.fixture
def environment(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """That of all processes of the cluster, and of the command that drains."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
    for name, value in token.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, **RAY_ENV, **ports.environment(), **token}


@contextmanager
def ray_node(environment: Mapping[str, str], *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *COMMON, *flags]
    node = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield node
    finally:
        processes = descendants(node.pid)
        node.kill()
        node.wait()
        kill_all(processes)


def raylet_of(node: "subprocess.Popen[bytes]") -> Raylet | None:
    below = {process.pid for process in descendants(node.pid)}
    return next((raylet for raylet in find_raylets() if raylet.process.pid in below), None)


def number_of_workers(dashboard: str) -> int | None:
    try:
        return len(worker_addresses(dashboard))
    except (OSError, ValueError, LookupError, TypeError):
        return None


@pytest.fixture
def run_dir() -> Iterator[str]:
    """A folder whose name is short: it is a part of the names of sockets."""
    with TemporaryDirectory(prefix="tandem-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


def test_a_drained_node_ends_itself_and_the_head_goes_last(
    ports: Ports, environment: Mapping[str, str], run_dir: str
) -> None:
    dashboard = DASHBOARD.replace("8265", str(ports.dashboard))
    worker_flags = [f"--{name}={free_port()}" for name in WORKER_PORTS]
    with ExitStack() as stack:
        head_flags = (*ports.head_flags(), "--dashboard-host=127.0.0.1", f"--temp-dir={run_dir}")
        stack.enter_context(ray_node(environment, "--head", *head_flags))
        wait_for(lambda: number_of_workers(dashboard) == 0, "Ray's head")
        address = f"--address=127.0.0.1:{ports.gcs}"
        worker = stack.enter_context(ray_node(environment, address, *worker_flags))
        wait_for(lambda: number_of_workers(dashboard) == 1, "Ray's worker")
        raylet = raylet_of(worker)
        assert raylet is not None

        drain_node(raylet, [])
        drain_head(dashboard)

        left = read_process(raylet.process.pid)
        assert left is None or left.is_zombie
        assert number_of_workers(dashboard) == 0
