"""Errors on the way to a Kubernetes, in one sentence each, and the reads there.

The API server is a stand-in that answers with a few lists; what a real one answers is seen in
tests/integration/operator.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from typer.testing import CliRunner, Result

from tandem_serve.cli import add_commands_of_others, app

SERVICES = "/apis/serving.tandem.dev/v1alpha1/inferenceservices"
CREATED = "2026-11-21T13:00:00Z"

runner = CliRunner()


class ApiServer(ThreadingHTTPServer):
    """Answers each path with what it was given; 404 elsewhere."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.watched: list[list[dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        api, url = self._api(), urlsplit(self.path)
        if "watch" in parse_qs(url.query):
            self._answer(
                200, "".join(f"{json.dumps(one)}\n" for one in api.watched.pop(0)).encode()
            )
        elif url.path in api.lists:
            items = api.lists[url.path]
            body = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
            self._answer(200, json.dumps(body).encode())
        elif url.path not in api.refusals:
            self._answer(404, b"404 page not found\n", "text/plain")
        else:
            code, message = api.refusals[url.path]
            refusal = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
            self._answer(code, json.dumps(refusal).encode())

    def _api(self) -> ApiServer:
        assert isinstance(self.server, ApiServer)
        return self.server

    def _answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module", autouse=True)
def _commands() -> None:
    registered = {command.name for command in app.registered_commands}
    if "explain" not in registered:
        add_commands_of_others()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as api:
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ApiServer) -> Path:
    path = write_kubeconfig(tmp_path / "config", server.url)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def write_kubeconfig(path: Path, url: str) -> Path:
    context = {"cluster": "here", "user": "me", "namespace": "models"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "home",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "home", "context": context}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def service(name: str, namespace: str = "models") -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": namespace,
        "creationTimestamp": CREATED,
        "generation": 1,
    }
    return {"metadata": metadata, "spec": {"model": {"source": "file:///m"}}}


def failure(code: int) -> dict[str, Any]:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "no"}}


def of_namespace(namespace: str) -> str:
    return SERVICES.replace("v1alpha1/", f"v1alpha1/namespaces/{namespace}/")


def run(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments))


def error_of(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line.removeprefix("error: "))


def test_without_a_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    assert error_of("get").startswith("no Kubernetes is configured here (")
    assert "set KUBECONFIG" in error_of("explain", "tiny")


def test_a_file_that_is_no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    monkeypatch.setenv("KUBECONFIG", str(broken))

    for text in ("a: [", "", "clusters: []", "[]"):
        broken.write_text(text)
        assert error_of("get").startswith(f"{broken} is not a kubeconfig (")


def test_the_first_kubeconfig_that_is_there_counts(
    monkeypatch: pytest.MonkeyPatch, server: ApiServer, kubeconfig: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere/config:{kubeconfig}")
    server.lists[of_namespace("models")] = [service("tiny")]

    assert "tiny" in run("get").stdout


@pytest.mark.usefixtures("kubeconfig")
def test_a_context_that_is_not_there(kubeconfig: Path) -> None:
    assert error_of("get", "--context", "hom") == (
        f"there is no context 'hom' in {kubeconfig}; did you mean 'home'?"
    )
    assert error_of("get", "--context", "x").endswith("; available: home")


def test_a_kubernetes_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", url)))

        said = error_of("get")

    assert said.startswith(f"the Kubernetes at {url} does not answer (")
    assert "--context" in said


@pytest.mark.usefixtures("kubeconfig")
def test_a_kubernetes_without_tandem(server: ApiServer) -> None:
    assert error_of("get") == (
        f"the Kubernetes at {server.url} serves no InferenceService; install Tandem there "
        "(helm install tandem charts/tandem), or name another Kubernetes with --context"
    )


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (401, "does not know you (who are you?); log in to it again"),
        (403, "you may not do this: who are you?; ask for the role 'view'"),
        (500, "answers: who are you?"),
    ],
)
def test_a_kubernetes_that_refuses(server: ApiServer, code: int, words: str) -> None:
    server.refusals[of_namespace("models")] = (code, "who are you?")

    assert words in error_of("get")


@pytest.mark.usefixtures("kubeconfig")
def test_a_service_that_is_not_there(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = [service("tiny")]
    server.lists[SERVICES] = [service("tiny"), service("big", "team-a")]

    assert error_of("explain", "tini") == (
        "there is no service 'tini' in namespace models; did you mean 'tiny'?"
    )
    assert error_of("explain", "xyz").endswith("; available: tiny")
    assert error_of("explain", "big") == (
        "there is no service 'big' in namespace models; there is one in team-a: add -n team-a"
    )


@pytest.mark.usefixtures("kubeconfig")
def test_a_namespace_without_services(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = []
    server.refusals[SERVICES] = (403, "no")

    done = run("get")

    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "No services in models.\n"
    assert error_of("explain", "tiny").endswith("create one with kubectl apply -f FILE")


@pytest.mark.usefixtures("kubeconfig")
def test_the_services_of_every_namespace(server: ApiServer) -> None:
    server.lists[SERVICES] = [service("tiny"), service("big", "team-a")]

    head, *rows = run("get", "-A").stdout.splitlines()

    assert head.split()[:3] == ["NAMESPACE", "NAME", "READY"]
    assert [row.split()[:2] for row in rows] == [["models", "tiny"], ["team-a", "big"]]


@pytest.mark.usefixtures("kubeconfig")
def test_watching_shows_what_changes_once(server: ApiServer) -> None:
    tiny = service("tiny")
    ready = tiny | {"status": {"reason": "Serving", "model": "m"}}
    server.lists[of_namespace("models")] = [tiny]
    added, modified = {"type": "ADDED", "object": tiny}, {"type": "MODIFIED", "object": ready}
    # The API server forgets where the watch was, sends what is there, and fails for good.
    again = {"type": "ADDED", "object": ready}
    server.watched = [[added, modified, failure(410)], [again, failure(500)]]

    done = run("get", "-w")

    _, first, second = done.stdout.splitlines()
    assert "Serving" not in first
    assert "Serving" in second
    assert done.exit_code == 1


@pytest.mark.usefixtures("kubeconfig")
def test_what_may_not_be_read_is_left_out_of_an_explanation(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = [service("tiny")]

    said = run("explain", "tiny").stdout.splitlines()

    assert [line.partition(":")[0] for line in said] == [
        "state",
        "replicas",
        "change",
        "in the way",
        "next",
    ]
    assert "The operator seems not to run" in said[3]
