"""The real HAProxy, started as Ray Serve starts it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.harness import free_port, wait_for

FRONTEND = """\
defaults
    mode http
    timeout client 60s
    timeout connect 5s
    timeout server 60s
frontend http_frontend
    bind 127.0.0.1:{port}
    acl healthcheck path -i /-/healthz
    http-request return status {status} content-type text/plain string "x" if healthcheck
    http-request return status 200 content-type text/plain string "an answer"
"""


@contextmanager
def haproxy(folder: Path, *, health: int) -> Iterator[httpx.Client]:
    """A client of a HAProxy that answers health checks with the status `health`."""
    file, port = folder / "haproxy.cfg", free_port()
    file.write_text(FRONTEND.format(port=port, status=health))
    command = [str(Path(sys.prefix, "bin/tandem-haproxy")), "-db", "-f", str(file)]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, trust_env=False) as client:
            wait_for(lambda: _answers(client), "HAProxy")
            yield client
    finally:
        process.kill()
        process.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(("health", "connection"), [(200, None), (503, "close")])
def test_a_connection_ends_with_its_answer_where_health_checks_fail(
    tmp_path: Path, health: int, connection: str | None
) -> None:
    with haproxy(tmp_path, health=health) as client:
        answer = client.get("/v1/models")

        assert answer.text == "an answer"
        assert answer.headers.get("connection") == connection
        assert client.get("/-/healthz").status_code == health
