"""A service without replicas on a real Ray: refused at once, counted, and back with a replica."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import pytest

from tandem_operator.autoscaler.refusals import Refusals
from tandem_serve.api.document import ServeOptions, serve_document
from tandem_serve.api.manifest import load_manifest
from tandem_serve.api.ray_env import RAY_ENV
from tandem_serve.local.ports import Ports, free_ports
from tandem_serve.pod import haproxy
from tandem_serve.processes import descendants, kill_all
from tandem_serve.ray_client import APPLICATIONS
from tests.e2e.harness import wait_for
from tests.patience import HANG_S
from tests.ports import free_port
from tests.tiny import TINY
from tests.unit.operator.autoscaler.fake_api import ray_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUESTION: Final = {"model": "tandem-tiny", "prompt": "47+38=", "max_tokens": 2}
HEAD_POD: Final[Mapping[str, Any]] = {
    "metadata": {
        "labels": {"app.kubernetes.io/component": "head"},
        "ownerReferences": [ray_cluster("here")],
    },
    "status": {"podIP": "127.0.0.1"},
}


class Head:
    """Ray's head as KubeRay starts it, with HAProxy on a port of its own."""

    def __init__(self, ports: Ports, port: int) -> None:
        self.ports, self.port = ports, port
        address = f"http://127.0.0.1:{ports.dashboard}"
        self.ray = httpx.Client(base_url=address, trust_env=False, timeout=HANG_S)
        self.endpoint = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=HANG_S
        )

    def is_up(self) -> bool:
        try:
            return self.ray.get(APPLICATIONS).is_success
        except httpx.TransportError:
            return False

    def serve(self, replicas: int) -> None:
        """Hand Ray the document of so many replicas, as KubeRay does."""
        service = load_manifest(TINY / "local.yaml")
        found = service.manifest()
        found["spec"]["scaling"] = {"minReplicas": 0, "replicas": replicas}
        service = type(service).model_validate(found)
        options = ServeOptions(host="127.0.0.1", port=self.port)
        answer = self.ray.put(APPLICATIONS, json=serve_document(service, options))
        assert answer.is_success, answer.text
        wait_for(lambda: self.has(replicas), f"{replicas} replicas", instead=self.state)

    def state(self) -> Any:
        return self.ray.get(APPLICATIONS).json()["applications"].get("tiny", {})

    def has(self, replicas: int) -> bool:
        """Return True when Ray runs so many replicas, and no other."""
        state = self.state()
        found = state.get("deployments", {}).get("replica", {})
        states = [one["state"] for one in found.get("replicas", ())]
        return (
            state.get("status") == "RUNNING"
            and found.get("target_num_replicas") == replicas
            and states == ["RUNNING"] * replicas
        )

    def ask(self) -> httpx.Response:
        return self.endpoint.post("/v1/completions", json=QUESTION)

    def refuses(self) -> bool:
        """Return True when a request is told to come again in a minute."""
        answer = self.ask()
        return answer.status_code == 503 and answer.headers["retry-after"] == "60"

    async def count(self) -> int | None:
        """Return the requests that were refused, as the autoscaler reads it."""
        address = self.proxy_metrics().replace("127.0.0.1", "{ip}")
        return await Refusals(address, timeout_s=HANG_S).count([HEAD_POD], "here")

    def proxy_metrics(self) -> str:
        port = int(self.ports.environment()["RAY_SERVE_HAPROXY_METRICS_PORT"])
        return f"http://127.0.0.1:{port}/metrics?scope=backend"

    def most_queued(self) -> int:
        """Return how many requests at most have waited in the proxy for a replica."""
        page = httpx.get(self.proxy_metrics(), trust_env=False, timeout=HANG_S).text
        queued = re.findall(r"^haproxy_backend_max_queue{.*} (\d+)$", page, re.MULTILINE)
        assert queued, page
        return max(map(int, queued))

    def health(self) -> int:
        return self.endpoint.get("/-/healthz").status_code


@pytest.fixture
def head() -> Iterator[Head]:
    ports, port = free_ports(), free_port()
    with TemporaryDirectory(prefix="tandem-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder, "h").mkdir()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"),
                *(*ports.head_flags(), "--disable-usage-stats", "--no-monitor"),
                *(f"--temp-dir={folder}", "--object-store-memory=80000000"),
                *("--num-cpus=4", "--memory=8000000000", "--num-gpus=0"),
            ],
            env=environment(ports, Path(folder, "h")),
            stdout=subprocess.DEVNULL,
        )
        found = Head(ports, port)
        try:
            wait_for(found.is_up, "Ray's head")
            yield found
        finally:
            found.ray.close()
            found.endpoint.close()
            below = descendants(process.pid)
            process.kill()
            process.wait()
            kill_all(below)


def environment(ports: Ports, folder: Path) -> dict[str, str]:
    """Return that of a head's pod, with ports and files of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "METRICS_SOCKET_PATH": "metrics.sock",
        "SERVER_STATE_BASE": "",
        "SERVER_STATE_FILE": "server-state",
    }
    return {
        **kept,
        **RAY_ENV,
        **ports.environment(),
        **{f"RAY_SERVE_HAPROXY_{name}": str(folder / file) for name, file in files.items()},
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        haproxy.BINARY: str(Path(sys.prefix, "bin", haproxy.COMMAND)),
        haproxy.NODE_TYPE: "headgroup",
    }


async def test_a_service_goes_to_zero_and_comes_back_and_no_request_waits(head: Head) -> None:
    head.serve(0)
    wait_for(lambda: head.health() == 200, "the head says that it may stand behind the endpoint")
    assert await head.count() == 0, "health checks ask for no replica"
    answer = head.ask()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
    assert answer.json()["error"]["code"] == "no_replica"
    assert head.endpoint.get("/v1/models").status_code == 503
    assert await head.count() == 2, "who lists the models is about to ask"
    assert head.endpoint.get("/debug/steps").status_code == 503
    assert await head.count() == 2, "nobody waits for a replica there"
    assert head.most_queued() == 0, "a refusal does not wait"

    head.serve(1)
    wait_for(lambda: head.ask().is_success, "the replica answers")
    assert await head.count() is None, "a service with replicas counts nothing"

    head.serve(0)
    wait_for(head.refuses, "it refuses again")
    assert head.health() == 200
    counted = await head.count()
    assert counted is not None
    assert counted >= 1
    assert head.refuses()
    assert await head.count() == counted + 1
    assert head.most_queued() == 0
