"""Conditions for which a Ray pod waits before it ends; with a real Ray: tests/e2e/test_drain.py."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest

from tandem_serve.api.document import ServeOptions, serve_document
from tandem_serve.api.draining import (
    GRACEFUL_SHUTDOWN_TIMEOUT_S,
    HEAD_TIMEOUT_S,
    TERMINATION_GRACE_PERIOD_S,
)
from tandem_serve.api.manifest import load_manifest
from tandem_serve.pod import drain
from tandem_serve.processes import Process, read_process

EXAMPLES = Path(__file__).parents[4] / "examples" / "tandem-tiny"
# A process of any name: it ends when its standard input does.
WAIT = ("-c", "import sys; print('up', flush=True); sys.stdin.read()")


@contextmanager
def process(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that calls itself `command` and waits."""
    name, *arguments = command
    with subprocess.Popen(
        [name, *WAIT, *arguments],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"up\n"
        yield started


class FakeDashboard(ThreadingHTTPServer):
    """Ray's list of nodes; each answer is the next of `answers`, the last one for ever."""

    daemon_threads = True

    def __init__(self, *answers: list[tuple[str, bool]]) -> None:
        super().__init__(("127.0.0.1", 0), _Nodes)
        self.answers = list(answers)
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Nodes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, FakeDashboard)
        self.server.tokens.add(self.headers["Authorization"])
        answers = self.server.answers
        nodes = answers.pop(0) if len(answers) > 1 else answers[0]
        found = [
            {"state": state, "is_head_node": is_head, "node_ip": f"10.0.0.{at}"}
            for at, (state, is_head) in enumerate(nodes)
        ]
        body = json.dumps({"data": {"result": {"result": found}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(server: FakeDashboard) -> Iterator[FakeDashboard]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


HEAD, WORKER, GONE = ("ALIVE", True), ("ALIVE", False), ("DEAD", False)


def test_a_replica_has_as_long_as_its_pod() -> None:
    service = load_manifest(EXAMPLES / "local.yaml")
    (application,) = serve_document(service, ServeOptions())["applications"]

    timeout_s = application["deployments"][0]["graceful_shutdown_timeout_s"]

    assert timeout_s == GRACEFUL_SHUTDOWN_TIMEOUT_S < HEAD_TIMEOUT_S < TERMINATION_GRACE_PERIOD_S


def test_the_head_waits_until_the_last_worker_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with serving(FakeDashboard([HEAD, WORKER, WORKER], [HEAD, WORKER, GONE], [HEAD, GONE])) as ray:
        drain.drain_head(ray.url)

        assert len(ray.answers) == 1
        assert ray.tokens == {"Bearer secret"}
    said = capsys.readouterr().err.splitlines()
    assert ["2 other node(s)" in said[0], "1 other node(s)" in said[1]] == [True, True]


def test_the_head_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with serving(FakeDashboard([HEAD, WORKER])) as ray:
        drain.drain_head(ray.url, timeout_s=0.1)

        assert ray.tokens == {None}


def test_the_head_goes_on_when_ray_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    drain.drain_head("http://127.0.0.1:9")

    assert capsys.readouterr().err == "tandem drain: Ray does not answer; continuing\n"


def test_rays_node_process_is_found_by_its_options() -> None:
    options = ("--node_id=ab", "--gcs-address=10.0.0.1:6379", "--agent=x --node_id=cd")
    with process("/opt/ray/raylet", *options) as started:
        (found,) = [raylet for raylet in drain.find_raylets() if raylet.process.pid == started.pid]

    assert (found.node_id, found.gcs_address) == ("ab", "10.0.0.1:6379")


def test_haproxy_is_found_by_its_name() -> None:
    with process("/opt/haproxy/bin/haproxy") as ours, process("/opt/haproxy-exporter") as other:
        found = {haproxy.pid for haproxy in drain.find_haproxies()}

    assert ours.pid in found
    assert other.pid not in found


def test_waiting_ends_with_the_process() -> None:
    with process("raylet") as started:
        running = read_process(started.pid)
        assert running is not None
        drain.wait_for_end([running], timeout_s=0.0, is_busy=lambda: True)
        assert started.poll() is None
        ended = threading.Timer(0.1, started.kill)
        ended.start()
        drain.wait_for_end([running], timeout_s=60.0, is_busy=lambda: True)

    assert started.returncode is not None


def test_nothing_is_waited_for_where_no_request_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    busy = iter([True, False, True])
    with process("raylet") as started:
        running = read_process(started.pid)
        assert running is not None
        drain.wait_for_end(
            [running], timeout_s=3600.0, is_busy=lambda: next(busy, False), idle_s=0.6
        )
        assert started.poll() is None

    assert next(busy, None) is None
    assert capsys.readouterr().err == "tandem drain: no connection for 1 s; continuing\n"


def test_a_connection_to_the_endpoint_or_a_replica_is_one_with_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(drain, "SERVE_PORT", port)
        # Ray's default ports are free, or another program's: only this one is checked.
        monkeypatch.setattr(drain, "_REPLICA_PORTS", range(0))
        assert not drain.has_connections()
        with socket.create_connection(("127.0.0.1", port)):
            assert drain.has_connections()
            monkeypatch.setattr(drain, "SERVE_PORT", 0)
            assert not drain.has_connections()
            monkeypatch.setattr(drain, "_REPLICA_PORTS", range(port, port + 1))
            assert drain.has_connections()


@pytest.mark.parametrize("role", ["worker", "head"])
def test_it_returns_zero_whatever_happens(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(drain, "drain_worker", fail)
    monkeypatch.setattr(drain, "drain_head", fail)

    assert drain.main([role]) == 0


def test_it_starts_without_ray_and_without_libraries() -> None:
    code = (
        "import sys, tandem_serve.pod.drain\n"
        "print(sorted({'ray', 'torch', 'pydantic', 'httpx', 'asyncio'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 1 1 0 100 0
   1: 0500000A:C350 0400000A:18EB 01 00000000:00000000 00:00000000 00000000  1000 0 2 1 0 20 4
   2: 0500000A:C351 0400000A:18EB 06 00000000:00000000 00:00000000 00000000     0 0 0 3 0 20 4
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue
   0: 0000000000000000FFFF00000500000A:C352 0000000000000000FFFF00000400000A:18EB 01 00000000
   1: B80D0120000000000000000001000000:C353 B80D0120000000000000000002000000:18EB 01 00000000
"""


def to_gcs(local_port: int, address: str) -> drain.Connection:
    return drain.Connection(local_port=local_port, peer=ip_address(address), peer_port=6379)


def raylet() -> drain.Raylet:
    return drain.Raylet(process=myself(), node_id="ab", gcs_address="head.default.svc:6379")


def myself() -> Process:
    me = read_process(os.getpid())
    assert me is not None
    return me


@pytest.mark.skipif(sys.byteorder != "little", reason="the tables are a little-endian kernel's")
def test_the_other_ends_of_connections_are_read_as_the_kernel_prints_them() -> None:
    assert list(drain.established_connections(TCP)) == [to_gcs(50000, "10.0.0.4")]
    assert list(drain.established_connections(TCP6)) == [
        to_gcs(50002, "10.0.0.4"),
        to_gcs(50003, "2001:db8::2"),
    ]


def test_the_gcs_is_reached_as_the_raylet_is_connected_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert drain.resolve_gcs(myself(), f"gone.default.svc:{port}") == f"127.0.0.1:{port}"


def test_without_a_connection_the_name_has_to_do() -> None:
    assert drain.resolve_gcs(myself(), "head.default.svc:1") == "head.default.svc:1"


def test_the_drain_is_requested_until_ray_accepts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The head is away: it comes back elsewhere, if something outlives it."""
    failures = iter([RuntimeError("Ray is away"), subprocess.TimeoutExpired("ray", 1)])
    told: list[int] = []

    def tell(_: drain.Raylet, *, time_left_s: int) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        told.append(time_left_s)

    monkeypatch.setattr(drain, "request_drain", tell)
    monkeypatch.setattr(drain, "has_connections", lambda: True)

    assert drain.request_drain_until_accepted(raylet(), time_left_s=7)
    assert told == [7]
    assert capsys.readouterr().err == "tandem drain: Ray is away; retrying\n"


def test_a_node_does_not_wait_for_ever_for_a_head_that_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: drain.Raylet, *, time_left_s: int) -> None:
        raise RuntimeError(f"Ray is away, {time_left_s} s before the end")

    monkeypatch.setattr(drain, "request_drain", fail)
    monkeypatch.setattr(drain, "has_connections", lambda: True)
    monkeypatch.setattr(drain, "_HEAD_AWAY_S", 0.1)

    drain.drain_node(raylet(), [])


def test_requests_end_where_ray_never_hears_that_the_node_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: drain.Raylet, *, time_left_s: int) -> None:
        raise RuntimeError(f"Ray is away, {time_left_s} s before the end")

    busy = iter([True, True])
    monkeypatch.setattr(drain, "request_drain", fail)
    monkeypatch.setattr(drain, "has_connections", lambda: next(busy, False))
    monkeypatch.setattr(drain, "_IDLE_S", 0.6)

    drain.drain_node(raylet(), [])

    assert next(busy, None) is None
