"""Requests to an API server: paths, pages, watches, and all that is no answer of its own."""

import gzip
import json
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from tandem_operator.commands import api_reader
from tandem_operator.commands.cluster import Cluster
from tests.unit.operator.commands.api_server import (
    SERVICES,
    ApiServer,
    Raw,
    error_of,
    failure,
    of_namespace,
    page,
    refusal,
    run,
    service,
    write_kubeconfig,
)
from tools.cluster.pki import Authority, KeyPair

Serve = Callable[[ApiServer], ApiServer]
MODELS = of_namespace("models")
DEPTH = 10_000


@pytest.fixture
def cluster(kubeconfig: Path) -> Cluster:
    assert kubeconfig.exists()
    return Cluster.connect(None)


def names(services: list[Any]) -> list[str]:
    return [one["metadata"]["name"] for one in services]


def deep() -> str:
    return '{"a":' * DEPTH + "1" + "}" * DEPTH


# Lists


def test_a_list_is_read_page_by_page(server: ApiServer, cluster: Cluster) -> None:
    server.pages = [page([service("a")], **{"continue": "x y&z"}), page([service("b")])]

    found = cluster.services("models")

    assert names(found) == ["a", "b"]
    assert [(request.path, request.query) for request in server.requests] == [
        (MODELS, {"limit": "500"}),
        (MODELS, {"limit": "500", "continue": "x y&z"}),
    ]


def test_pages_that_have_expired_are_read_as_one(server: ApiServer, cluster: Cluster) -> None:
    both = page([service("a"), service("b")])
    server.pages = [page([service("a")], **{"continue": "x"}), refusal(410, "expired"), both]

    assert names(cluster.services("models")) == ["a", "b"]
    assert server.requests[-1].query == {}


def test_pods_are_selected_by_their_labels(server: ApiServer, cluster: Cluster) -> None:
    server.lists["/api/v1/namespaces/models/pods"] = [service("pod")]

    assert names(cluster.pods({"a/b": "c", "d": "e"}, "models")) == ["pod"]
    assert server.requests[-1].query["labelSelector"] == "a/b=c,d=e"


@pytest.mark.usefixtures("kubeconfig")
def test_a_namespace_is_one_part_of_the_path(server: ApiServer) -> None:
    assert "serves no InferenceService" in error_of("get", "-n", "a/b?c#d")
    assert server.requests[-1].path == of_namespace("a%2Fb%3Fc%23d")


def test_a_compressed_answer_is_read(server: ApiServer, cluster: Cluster) -> None:
    body = gzip.compress(page([service("tiny")]).body)
    server.raw[MODELS] = Raw(200, body, {"Content-Encoding": "gzip"})

    assert names(cluster.services("models")) == ["tiny"]


@pytest.mark.usefixtures("kubeconfig")
def test_an_object_that_is_nested_too_deep_is_shown(server: ApiServer) -> None:
    body = page([service("tiny", annotations="DEEP")]).body.replace(b'"DEEP"', deep().encode())
    server.raw[MODELS] = Raw(200, body)

    assert "tiny" in run("get").stdout
    assert "tiny" in run("explain", "tiny").stdout


# Watches


def test_a_watch_goes_on_where_it_ended(server: ApiServer, cluster: Cluster) -> None:
    server.pages = [page([service("a")], resourceVersion="1")]
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}
    server.watched = [
        [{"type": "ADDED", "object": service("b", resourceVersion="5")}, bookmark],
        [{"type": "DELETED", "object": service("b", resourceVersion="8")}],
        [failure(410)],
        [{"type": "ADDED", "object": service("d", resourceVersion="9")}],
    ]
    changes = cluster.changes("models")

    assert names([next(changes) for _ in range(3)]) == ["a", "b", "b"]
    server.pages = [page([service("c")], resourceVersion="20")]
    assert names([next(changes) for _ in range(2)]) == ["c", "d"]
    watches = [
        request.query["resourceVersion"] for request in server.requests if "watch" in request.query
    ]
    assert watches == ["1", "7", "8", "20"]


def test_a_watch_that_is_refused_as_too_old_begins_again(
    server: ApiServer, cluster: Cluster
) -> None:
    server.lists[MODELS] = [service("a")]
    server.watched = [refusal(410, "too old"), refusal(410, "too old")]
    changes = cluster.changes("models")

    assert names([next(changes) for _ in range(3)]) == ["a", "a", "a"]


@pytest.mark.usefixtures("kubeconfig")
def test_a_watch_shows_an_object_that_is_nested_too_deep(server: ApiServer) -> None:
    server.lists[MODELS] = []
    event = json.dumps({"type": "ADDED", "object": service("tiny", annotations="DEEP")})
    server.watched = [Raw(200, b"\n" + event.replace('"DEEP"', deep()).encode() + b"\n")]
    server.watched += [[failure(500)]]

    assert "tiny" in run("get", "-w").stdout


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    "line",
    [
        b'{"object": {"metadata": {"name": "a", "namespace": "models"}}}',
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "a"}}}',
        b'{"type": "BOOKMARK", "object": []}',
        b'{"type": "ERROR", "object": "x"}',
    ],
)
def test_an_event_that_is_not_of_kubernetes(server: ApiServer, line: bytes) -> None:
    server.lists[MODELS] = []
    server.watched = [Raw(200, line + b"\n")]

    said = error_of("get", "-w")

    assert said.startswith(f"{server.url} answers with something that is not Kubernetes' own")


@pytest.mark.usefixtures("kubeconfig")
def test_ctrl_c_ends_a_watch(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.lists[MODELS] = [service("tiny")]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api_reader, "iter_resp_lines", interrupt)
    server.watched = [[]]

    done = run("get", "-w")

    assert done.exit_code == 130
    assert done.stderr == ""


# What is no answer of an API server


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in</html>",
        b"",
        b"[]",
        b"{}",
        b'"x"',
        b"\xff",
        b'{"items": [{}]}',
        b'{"items": 1}',
    ],
)
def test_an_answer_that_is_not_of_kubernetes(server: ApiServer, body: bytes) -> None:
    server.raw[MODELS] = Raw(200, body, {"Content-Type": "text/html"})

    said = error_of("get")

    assert said.startswith(f"{server.url} answers with something that is not Kubernetes' own")


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (Raw(503, b"<html>", {"Content-Type": "text/html"}), "answers: Service Unavailable"),
        (
            Raw(400, b"Client sent an \x1b[31mHTTP\nrequest", {"Content-Type": "text/plain"}),
            "answers: Bad Request (Client sent an [31mHTTP)",
        ),
        (Raw(502, b'{"message": 1'), "answers: Bad Gateway"),
        (Raw(429, b"", {"Retry-After": "60"}), "answers: Too Many Requests"),
    ],
)
def test_a_proxys_refusal_is_shown(server: ApiServer, raw: Raw, words: str) -> None:
    server.raw[MODELS] = raw

    assert error_of("get").endswith(words)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    code: int,
    server: ApiServer,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = serve(ApiServer())
    to = f"{other.url}{MODELS}"
    server.raw[MODELS] = Raw(code, b"", {"Location": to})
    config = write_kubeconfig(tmp_path / "config", server.url, user={"token": "secret"})
    monkeypatch.setenv("KUBECONFIG", str(config))

    said = error_of("get")

    assert said.endswith(f", to {to}")
    assert server.requests[-1].headers["Authorization"] == "Bearer secret"
    assert other.requests == []


@pytest.mark.usefixtures("kubeconfig")
def test_a_server_that_is_silent(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_reader, "_TIMEOUT_S", 0.2)
    server.delay_s = 1.0

    assert f"{server.url} does not answer (nothing within 0.2 s)" in error_of("get")
    assert len(server.requests) == 1


def test_a_server_that_hangs_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", url)))

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()

        said = error_of("get")

        thread.join()
    assert said.startswith(f"the Kubernetes at {url} does not answer (")
    assert "0x" not in said


# TLS


@pytest.fixture
def authority() -> Authority:
    return Authority("here")


@pytest.fixture
def secure(authority: Authority, tmp_path: Path, serve: Serve) -> ApiServer:
    """A server with a certificate of the authority, which asks its clients for one."""
    pair = authority.sign("server", addresses=[IPv4Address("127.0.0.1")])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*write_pair(tmp_path, pair))
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    api = serve(ApiServer(context))
    api.lists[MODELS] = [service("tiny")]
    return api


def write_pair(folder: Path, pair: KeyPair) -> tuple[Path, Path]:
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return folder / "tls.crt", folder / "tls.key"


def inline(data: bytes) -> str:
    return b64encode(data).decode()


def client_of(pair: KeyPair) -> dict[str, str]:
    return {
        "client-certificate-data": inline(pair.certificate),
        "client-key-data": inline(pair.key),
    }


def trusting(authority: Authority) -> dict[str, str]:
    return {"certificate-authority-data": inline(authority.certificate)}


def test_certificates_of_the_kubeconfig_leave_no_file(
    authority: Authority, secure: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    user = client_of(authority.sign("me"))
    path = write_kubeconfig(tmp_path / "c", secure.url, user=user, cluster=trusting(authority))
    monkeypatch.setenv("KUBECONFIG", str(path))

    cluster = Cluster.connect(None)

    assert list(folder.iterdir()) == []
    assert names(cluster.services("models")) == ["tiny"]
    # Once more in the same process: what the client remembers of the files is stale.
    assert names(Cluster.connect(None).services("models")) == ["tiny"]


def test_certificates_in_files_beside_the_kubeconfig(
    authority: Authority, secure: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    write_pair(tmp_path, authority.sign("me"))
    path = write_kubeconfig(
        tmp_path / "c",
        secure.url,
        user={"client-certificate": "tls.crt", "client-key": "./tls.key"},
        cluster={"certificate-authority": "ca.crt"},
    )
    monkeypatch.setenv("KUBECONFIG", str(path))

    assert "tiny" in run("get").stdout


def test_a_server_that_is_not_trusted(
    secure: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = trusting(Authority("here"))
    path = write_kubeconfig(tmp_path / "c", secure.url, user={"token": "secret"}, cluster=other)
    monkeypatch.setenv("KUBECONFIG", str(path))

    said = error_of("get")

    assert said.startswith(f"TLS with the Kubernetes at {secure.url} fails ([SSL: CERTIFICATE")
    assert "0x" not in said
    assert secure.requests == []


def test_a_server_that_does_not_trust_the_user(
    secure: ApiServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = client_of(Authority("there").sign("me"))
    path = write_kubeconfig(tmp_path / "c", secure.url, user=user, cluster=trusting(authority))
    monkeypatch.setenv("KUBECONFIG", str(path))

    said = error_of("get")

    # Where the server hangs up before the client reads why, the connection alone is known.
    assert said.startswith((f"TLS with the Kubernetes at {secure.url} fails", "the Kubernetes at"))


@pytest.mark.parametrize("data", ["?", inline(b"no PEM")])
@pytest.mark.parametrize("key", ["certificate-authority-data", "client-certificate-data"])
def test_a_certificate_that_is_none(
    data: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "cluster" if "authority" in key else "user"
    path = write_kubeconfig(tmp_path / "c", "https://127.0.0.1:1", **{where: {key: data}})
    monkeypatch.setenv("KUBECONFIG", str(path))

    assert error_of("get").startswith("the certificates of context 'home' cannot be used (")


def test_tls_can_be_left_unverified_without_a_warning(
    authority: Authority, secure: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_kubeconfig(
        tmp_path / "c",
        secure.url,
        user=client_of(authority.sign("me")),
        cluster={"insecure-skip-tls-verify": True},
    )
    monkeypatch.setenv("KUBECONFIG", str(path))

    done = run("get")

    assert "tiny" in done.stdout
    assert done.stderr == ""


# Proxies


def test_a_proxy_of_the_environment_is_used_but_for_this_machine(
    server: ApiServer, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(ApiServer())
    proxy.lists[MODELS] = [service("far")]
    server.lists[MODELS] = [service("near")]
    monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:pass%20word@"))

    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "near", server.url)))
    assert "near" in run("get").stdout

    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "far", "http://far.test:1")))
    assert "far" in run("get").stdout
    secret = proxy.requests[-1].headers["proxy-authorization"]
    assert secret == f"Basic {inline(b'me:pass word')}"


def test_the_proxy_of_a_kubeconfig_is_always_used(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(ApiServer())
    proxy.lists[MODELS] = [service("tiny")]
    path = write_kubeconfig(tmp_path / "c", "http://127.0.0.1:1", cluster={"proxy-url": proxy.url})
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("NO_PROXY", "*")

    assert "tiny" in run("get").stdout


def test_a_proxy_that_does_not_answer_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_kubeconfig(tmp_path / "c", "https://far.test:6443")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:1")

    said = error_of("get")

    assert "does not answer (its proxy 127.0.0.1:1: [Errno 111] Connection refused)" in said
    assert "secret" not in said


def test_a_socks_proxy_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"proxy-url": "socks5://127.0.0.1:1"}
    path = write_kubeconfig(tmp_path / "c", "https://far.test:6443", cluster=cluster)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("tandem_operator.commands.access.find_spec", lambda _: None)

    assert error_of("get").endswith("which needs a package: pip install pysocks")


def test_every_namespace_has_a_path_of_its_own(server: ApiServer, cluster: Cluster) -> None:
    server.lists[SERVICES] = [service("tiny")]

    assert names(cluster.services("*")) == ["tiny"]
