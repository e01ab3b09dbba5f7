"""A stand-in for the API server, and kubeconfigs that name it."""

import json
import ssl
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml
from typer.testing import CliRunner, Result

from tandem_serve.cli import app

SERVICES = "/apis/serving.tandem.dev/v1alpha1/inferenceservices"
CREATED = "2026-11-21T13:00:00Z"

runner = CliRunner()


class Raw(NamedTuple):
    """An answer of something in between."""

    code: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Request(NamedTuple):
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class ApiServer(ThreadingHTTPServer):
    """Answers each path with what it was given; 404 elsewhere."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.raw: dict[str, Raw] = {}
        self.pages: list[Raw] = []
        """What comes before all else, one a request."""
        self.watched: list[list[dict[str, Any]] | Raw] = []
        self.requests: list[Request] = []
        self.delay_s = 0.0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that does not trust the server hangs up."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        api, url = self._api(), urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        api.requests.append(Request(url.path, query, dict(self.headers)))
        time.sleep(api.delay_s)
        if "watch" in query:
            self._watch(api.watched.pop(0))
        elif api.pages:
            self._answer(api.pages.pop(0))
        elif url.path in api.lists:
            self._answer(page(api.lists[url.path]))
        elif url.path in api.raw:
            self._answer(api.raw[url.path])
        elif url.path in api.refusals:
            self._answer(refusal(*api.refusals[url.path]))
        else:
            self._answer(Raw(404, b"404 page not found\n", {"Content-Type": "text/plain"}))

    def _api(self) -> ApiServer:
        assert isinstance(self.server, ApiServer)
        return self.server

    def _watch(self, events: list[dict[str, Any]] | Raw) -> None:
        if isinstance(events, Raw):
            self._answer(events)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            line = f"{json.dumps(event)}\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, raw: Raw) -> None:
        self.send_response(raw.code)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(raw.body))}
        for key, value in {**headers, **raw.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(raw.body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def page(items: list[dict[str, Any]], **metadata: str) -> Raw:
    body = {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}
    return Raw(200, json.dumps(body).encode())


def refusal(code: int, message: str) -> Raw:
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return Raw(code, json.dumps(status).encode())


def failure(code: int) -> dict[str, Any]:
    """The event of a watch that fails."""
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "no"}}


def write_kubeconfig(
    path: Path,
    url: str,
    *,
    user: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
) -> Path:
    context = {"cluster": "here", "user": "me", "namespace": "models"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "home",
        "clusters": [{"name": "here", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "me", "user": dict(user or {})}],
        "contexts": [{"name": "home", "context": context}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def service(name: str, namespace: str = "models", **metadata: Any) -> dict[str, Any]:
    always = {
        "name": name,
        "namespace": namespace,
        "creationTimestamp": CREATED,
        "generation": 1,
    }
    return {"metadata": always | metadata, "spec": {"model": {"source": "file:///m"}}}


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
