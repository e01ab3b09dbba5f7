"""The real HAProxy, started as Ray Serve starts it, with the configuration that Serve writes."""

import json
import os
import resource
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tandem_serve.api.ray_env import RAY_ENV
from tandem_serve.http.openai.streaming import COMMENT
from tandem_serve.pod import haproxy as wrapper
from tests.e2e.harness import wait_for
from tests.patience import HANG_S
from tests.ports import free_port

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
        with httpx.Client(base_url=url, trust_env=False, timeout=HANG_S) as client:
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


# What Serve's HAProxyManager does, in a process of its own: Serve reads the profile at its import.
RENDER = """
import sys
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

port, server = int(sys.argv[1]), int(sys.argv[2])
options = HTTPOptions(host="127.0.0.1", port=port)
config = HAProxyConfig(
    http_options=options, has_received_routes=True, has_received_servers=True, is_head=True
)
one = ServerConfig(name="replica", host="127.0.0.1", port=server)
backend = BackendConfig(name="http-tiny", path_prefix="/", app_name="tiny", servers=[one])
HAProxyApi(config, {"http-tiny": backend} if server else {})._generate_config_file_internal()
"""


SILENT_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n" % (len(COMMENT), COMMENT)
)


class FakeReplica(socketserver.ThreadingTCPServer):
    """A server that answers at `/`; at `/wait`, and after a comment at `/stream`, when told to."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeReplicaHandler)
        self.is_requested = threading.Event()
        self.may_answer = threading.Event()
        self.head = b""
        """That of the last request but health checks."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class FakeReplicaHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, FakeReplica)
        with suppress(ConnectionError):
            while line := self.rfile.readline():
                head = b"".join(iter(self.rfile.readline, b"\r\n"))
                self.rfile.read(content_length(head))
                if b"/-/healthz" not in line:
                    self.server.head = head
                if b"/stream" in line:
                    self.wfile.write(SILENT_STREAM)
                    self.server.may_answer.wait()
                    self.wfile.write(b"0\r\n\r\n")
                    continue
                if b"/wait" in line:
                    self.server.is_requested.set()
                    self.server.may_answer.wait()
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def content_length(head: bytes) -> int:
    fields = dict(line.partition(b":")[::2] for line in head.lower().splitlines())
    return int(fields.get(b"content-length", 0))


@pytest.fixture
def replica() -> Iterator[FakeReplica]:
    with FakeReplica() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.may_answer.set()
        server.shutdown()


# Stand for the ports of a test in what Serve has written.
PORT, SERVER, METRICS, STATS = 60_001, 60_002, 60_003, 60_004


@cache
def written_by_serve(*, has_replica: bool) -> tuple[str, str]:
    """What Serve writes for one application with or without a replica, and the folder it names.

    Written once, as it takes a process that imports Serve.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "haproxy.cfg"
        own = {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(file),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(METRICS),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(STATS),
        }
        subprocess.run(
            [sys.executable, "-c", RENDER, str(PORT), str(SERVER * has_replica)],
            env={**os.environ, **RAY_ENV, **own},
            check=True,
            capture_output=True,
        )
        return file.read_text(), name


def ray_s_configuration(folder: Path, *, port: int, server: int) -> Path:
    """The file that Serve writes for one application with one replica; `server` 0: without any."""
    text, written_in = written_by_serve(has_replica=server > 0)
    own = {PORT: port, SERVER: server, METRICS: free_port(), STATS: free_port()}
    for stand_in, number in own.items():
        assert str(stand_in) in text or (stand_in, server) == (SERVER, 0)
        text = text.replace(str(stand_in), str(number))
    file = folder / "haproxy.cfg"
    file.write_text(text.replace(written_in, str(folder)))
    return file


@contextmanager
def ray_s_haproxy(
    folder: Path, server: int, *, faster: Mapping[str, str] | None = None
) -> Iterator[httpx.Client]:
    """A client of the HAProxy that Serve starts; `faster` replaces texts of the configuration."""
    port = free_port()
    file = ray_s_configuration(folder, port=port, server=server)
    program = str(Path(sys.prefix, "bin/tandem-haproxy"))
    if faster:
        program, text = wrapper.real_haproxy(), wrapper._patched_file(file)
        for usual, other in faster.items():
            assert usual in text
            text = text.replace(usual, other)
        file.write_text(text)
    process = subprocess.Popen([program, "-db", "-f", str(file)], stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, trust_env=False, timeout=HANG_S) as client:
            wait_for(lambda: _listens(port) or process.poll() is not None, "HAProxy")
            assert process.poll() is None
            yield client
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def read_to_the_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("has_backend", [True, False])
def test_without_a_replica_the_proxy_s_answer_is_a_503_in_openai_s_form(
    tmp_path: Path, *, has_backend: bool
) -> None:
    closed = free_port() if has_backend else 0
    with ray_s_haproxy(tmp_path, closed) as client:
        answer = client.post("/v1/chat/completions", json={})

    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"] == "1"
    assert answer.json() == {
        "error": {
            "message": "No replica is available; try again in a moment.",
            "type": "server_error",
            "param": None,
            "code": "no_replica",
        }
    }


def test_there_may_be_more_connections_than_the_largest_replica_has_slots(
    tmp_path: Path, replica: FakeReplica
) -> None:
    with ray_s_haproxy(tmp_path, replica.port) as client:
        assert client.get("/").text == "ok"
        with closing(socket.socket(socket.AF_UNIX)) as admin:
            admin.connect(str(tmp_path / "admin.sock"))
            admin.sendall(b"show info\n")
            lines = read_to_the_end(admin).decode().splitlines()

    info = dict(line.split(": ", 1) for line in lines if ": " in line)
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = int(RAY_ENV["RAY_SERVE_HAPROXY_MAXCONN"])
    assert enough > 3 * 4096
    assert int(info["Maxconn"]) == min(enough, int((max_files - 512) / 2.5))


def test_the_head_and_a_comment_of_a_silent_stream_are_passed_on_at_once(
    tmp_path: Path, replica: FakeReplica
) -> None:
    with ray_s_haproxy(tmp_path, replica.port) as client, client.stream("GET", "/stream") as answer:
        pieces = answer.iter_raw()
        begin = next(pieces)
        assert not replica.may_answer.is_set()
        replica.may_answer.set()
        rest = b"".join(pieces)

    assert answer.headers["content-type"] == "text/event-stream"
    assert (begin, rest) == (COMMENT, b"")


DROPPED = {
    "an id that is not UTF-8": b"x-request-id: caf\xe9",
    "an id beyond ASCII": "x-request-id: café".encode(),
    "an id with a space": b"X-Request-ID: a b",
    "an id that is too long": b"x-request-id: " + b"a" * 129,
    "two ids": b"x-request-id: a\r\nx-request-id: \xe9",
    "a timeout": b"x-request-timeout-seconds: 1\xe9",
    "a model": b"serve_multiplexed_model_id: \xe9",
    "a model, spelt otherwise": b"Serve-Multiplexed-Model-Id: \xe9",
    "a session": b"x-session-id: \xe9",
    "a request without its caller": b"X-Request-Disconnect-Disabled: ?1",
}
PASSED_ON = {
    "an id": b"x-request-id: " + b"~" * 128,
    "a timeout": b"x-request-timeout-seconds: 2.5",
    "another header": b"x: caf\xe9",
}


def test_headers_that_serve_cannot_read_or_tandem_does_not_have_are_dropped(
    tmp_path: Path, replica: FakeReplica
) -> None:
    heads, passed_on = {}, {}
    with ray_s_haproxy(tmp_path, replica.port) as client:
        for case, header in DROPPED.items():
            assert answer_to(client, b"GET / HTTP/1.1", header).startswith(b"HTTP/1.1 200 ")
            heads[case] = replica.head.lower()
        for case, header in PASSED_ON.items():
            answer_to(client, b"GET / HTTP/1.1", header)
            passed_on[case] = header in replica.head

    names = {case: header.partition(b":")[0].lower() for case, header in DROPPED.items()}
    assert [case for case, name in names.items() if name in heads[case]] == []
    assert passed_on == dict.fromkeys(PASSED_ON, True)


@pytest.mark.parametrize("has_replica", [True, False])
def test_a_method_that_no_path_supports_is_refused_in_openai_s_form(
    tmp_path: Path, replica: FakeReplica, *, has_replica: bool
) -> None:
    unknown = (b"BREW /v1/models", b"LINK /v1/models", b"get /v1/models", b"CONNECT a:80")
    with ray_s_haproxy(tmp_path, replica.port if has_replica else 0) as client:
        answers = [answer_to(client, b"%s HTTP/1.1" % line) for line in unknown]
        others = {client.request(method, "/").status_code for method in wrapper._METHODS}

    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.lower().startswith(b"http/1.1 405 ")
        assert json.loads(body)["error"]["code"] == "method_not_allowed"
    assert others == {200 if has_replica else 503}


def test_a_request_to_become_a_websocket_is_one_like_any_other(
    tmp_path: Path, replica: FakeReplica
) -> None:
    lines = (
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
    )
    with ray_s_haproxy(tmp_path, replica.port) as client:
        answer = answer_to(client, b"GET / HTTP/1.1", b"\r\n".join(lines))

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"upgrade: " not in replica.head.lower()


def answer_to(client: httpx.Client, line: bytes, header: bytes = b"x: y") -> bytes:
    """The whole answer to a request without a body, after which the connection ends."""
    address = (client.base_url.host, client.base_url.port)
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(b"%s\r\nHost: a\r\nConnection: close\r\n%s\r\n\r\n" % (line, header))
        return read_to_the_end(connection)


SLOW = {
    "nothing": b"",
    "half a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-",
    "half a body": b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
}


def test_a_slow_sender_loses_the_connection_and_a_client_that_waits_for_an_answer_does_not(
    tmp_path: Path, replica: FakeReplica
) -> None:
    faster = {"timeout http-request 10s": "timeout http-request 300ms"}
    faster |= {"timeout client 60s": "timeout client 300ms"}
    with ray_s_haproxy(tmp_path, replica.port, faster=faster) as client:
        answers: list[httpx.Response] = []
        patient = threading.Thread(target=lambda: answers.append(client.get("/wait")))
        patient.start()
        replica.is_requested.wait()
        ends = {}
        for name, sent in SLOW.items():
            address = (client.base_url.host, client.base_url.port)
            with closing(socket.create_connection(address)) as slow:
                slow.sendall(sent)
                ends[name] = read_to_the_end(slow).partition(b"\r\n")[0]
        replica.may_answer.set()
        patient.join()

    assert ends["nothing"].startswith(b"HTTP/1.1 408 ")
    assert ends["half a head"].startswith(b"HTTP/1.1 408 ")
    assert ends["half a body"].startswith(b"HTTP/1.1 400 ")
    assert [answer.text for answer in answers] == ["ok"]


def demand(folder: Path) -> str:
    """The count that the autoscaler reads, in the exposition of HAProxy."""
    port = next(
        line.rpartition(":")[2]
        for line in (folder / "haproxy.cfg").read_text().splitlines()
        if "bind :" in line
    )
    url = f"http://127.0.0.1:{port}/metrics?scope=backend"
    name = 'haproxy_backend_http_requests_total{proxy="tandem_demand"}'
    lines = httpx.get(url, trust_env=False, timeout=HANG_S).text.splitlines()
    return next((line.rpartition(" ")[2] for line in lines if line.startswith(name)), "")


@pytest.fixture
def on_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on the head of a Ray cluster that KubeRay made."""
    monkeypatch.setenv("RAY_NODE_TYPE_NAME", "headgroup")


@pytest.mark.usefixtures("on_a_head")
def test_the_head_refuses_and_counts_what_a_service_without_replicas_is_asked_for(
    tmp_path: Path,
) -> None:
    with ray_s_haproxy(tmp_path, 0) as client:
        answers = [client.post(f"/v1/{path}", json={}) for path in ("completions", "x", "y")]
        answers.append(client.get("/v1/models"))
        others = [client.get("/v1/models/x"), client.post("/"), client.get("/metrics")]
        health = client.get("/-/healthz")

        assert demand(tmp_path) == "4", "scanners and health checks start no replica"

    for answer in (*answers, *others):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "60"
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "no_replica"
        assert answer.json()["error"]["type"] == "server_error"
        assert "Try again in 60 s." in answer.json()["error"]["message"]
    assert health.status_code == 200, "else KubeRay takes the head from behind the endpoint"


@pytest.mark.usefixtures("on_a_head")
def test_with_a_replica_the_head_sends_requests_to_it(tmp_path: Path, replica: FakeReplica) -> None:
    with ray_s_haproxy(tmp_path, replica.port) as client:
        assert client.post("/v1/completions", json={}).text == "ok"
        assert demand(tmp_path) == ""


def test_no_other_node_counts(tmp_path: Path) -> None:
    with ray_s_haproxy(tmp_path, 0) as client:
        assert client.post("/v1/completions", json={}).headers["retry-after"] == "1"
        assert demand(tmp_path) == ""
