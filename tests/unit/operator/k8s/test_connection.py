"""Logins to the API server, over real HTTP connections."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer
from kubernetes.aio.config import incluster_config

from tandem_operator.k8s import connection as module
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.connection import Connection, connect
from tandem_operator.k8s.errors import Unauthorized, Unreachable
from tandem_operator.k8s.kinds import POD
from tandem_operator.k8s.kopf_login import KopfLogin
from tandem_operator.k8s.kubeconfig import NoCluster
from tools.cluster.pki import Authority

WriteToken = Callable[[str | None], None]


class Api:
    """An API server that lists no pods, and keeps the tokens that it was shown."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        self.redirect: str | None = None
        self.expired: set[str | None] = set()
        """Tokens that are no longer taken."""

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization")
        self.tokens.append(token)
        if token in self.expired:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if self.redirect:
            raise web.HTTPTemporaryRedirect(self.redirect)
        return web.json_response({"items": [], "metadata": {}})


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def server(api: Api) -> AsyncIterator[BaseTestServer]:
    async with _server_of(api) as server:
        yield server


def _server_of(api: Api) -> TestServer:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    return TestServer(application)


@pytest.fixture
def kubeconfig(server: BaseTestServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    log_in(path, server, {})
    return path


def log_in(path: Path, server: BaseTestServer, user: dict[str, Any]) -> None:
    """Write a kubeconfig with this user."""
    config = {
        "current-context": "dev",
        "clusters": [{"name": "dev", "cluster": {"server": str(server.make_url("/"))}}],
        "contexts": [
            {"name": "dev", "context": {"cluster": "dev", "user": "me", "namespace": "demo"}}
        ],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))


async def ask(connection: Connection) -> None:
    """Ask once with the operator's client, and once with kopf's session."""
    kube = KubeClient.connect(connection, lambda *_: None)
    try:
        await kube.list(POD, "demo")
    finally:
        await kube.close()
    session = (await KopfLogin(connection).open_session()).aiohttp_session
    async with session, session.get(connection.server):
        pass


async def test_a_token_is_shown_by_both(kubeconfig: Path, server: BaseTestServer, api: Api) -> None:
    log_in(kubeconfig, server, {"token": "secret"})

    connection = await connect(None)
    await ask(connection)

    assert api.tokens == ["Bearer secret", "Bearer secret"]
    assert connection.namespace == "demo"


@pytest.mark.usefixtures("kubeconfig")
async def test_a_user_without_a_login_is_anonymous(api: Api) -> None:
    await ask(await connect(None))

    assert api.tokens == [None, None]


@pytest.fixture
def write_token(
    kubeconfig: Path, server: BaseTestServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> WriteToken:
    """Writes the file with the token that the kubeconfig names; None: removes it.

    It has the token `first`, and logins need no pause.
    """
    monkeypatch.setattr(module, "_BETWEEN_LOGINS_S", 0.0)
    token = tmp_path / "token"
    log_in(kubeconfig, server, {"tokenFile": str(token)})

    def write(text: str | None) -> None:
        token.unlink() if text is None else token.write_text(text)

    write("first\n")
    return write


async def test_a_token_file_is_read_again(write_token: WriteToken, api: Api) -> None:
    connection = await connect("dev")
    await ask(connection)

    write_token("second\n")
    api.expired = {"Bearer first"}
    await ask(connection)

    assert api.tokens == ["Bearer first"] * 3 + ["Bearer second"] * 2


async def test_a_token_file_that_vanishes_is_a_failure_of_this_request_alone(
    write_token: WriteToken, api: Api
) -> None:
    connection = await connect(None)
    write_token(None)
    api.expired = {"Bearer first"}

    with pytest.raises(Unreachable, match="the token of context 'dev' cannot be read"):
        await ask(connection)

    write_token("second")
    await ask(connection)


@pytest.mark.parametrize("user", [{}, {"username": "me", "password": "secret"}], ids=str)
async def test_a_login_without_a_token_stays_as_it_is_when_it_is_refused(
    kubeconfig: Path, server: BaseTestServer, api: Api, user: dict[str, Any]
) -> None:
    log_in(kubeconfig, server, user)
    connection = await connect(None)
    await ask(connection)
    shown = api.tokens[0]
    api.expired = {shown}

    with pytest.raises(Unauthorized):
        await ask(connection)

    assert api.tokens == [shown] * 3


async def test_a_token_that_is_not_taken_is_not_looked_for_at_every_request(
    kubeconfig: Path, server: BaseTestServer, api: Api, tmp_path: Path
) -> None:
    log_in(kubeconfig, server, {"exec": plugin(tmp_path, {"token": "wrong"})})
    api.expired = {"Bearer wrong", "Bearer other"}
    connection = await connect(None)
    for _ in range(2):
        with pytest.raises(Unauthorized):
            await ask(connection)

    plugin(tmp_path, {"token": "other"})
    with pytest.raises(Unauthorized):
        await ask(connection)

    assert api.tokens == ["Bearer wrong"] * 3


async def test_requests_at_once_log_in_once(
    kubeconfig: Path, server: BaseTestServer, api: Api, tmp_path: Path
) -> None:
    log_in(kubeconfig, server, {"exec": plugin(tmp_path, {"token": "first"})})
    connection = await connect(None)
    plugin(tmp_path, {"token": "second"})
    api.expired = {"Bearer first"}
    kube = KubeClient.connect(connection, lambda *_: None)

    await asyncio.gather(*(kube.list(POD, "demo") for _ in range(8)))

    await kube.close()
    assert api.tokens.count("Bearer second") == 8


async def test_a_plugin_logs_in(
    kubeconfig: Path, server: BaseTestServer, api: Api, tmp_path: Path
) -> None:
    log_in(kubeconfig, server, {"exec": plugin(tmp_path, {"token": "of the plugin"})})

    await ask(await connect(None))

    assert api.tokens == ["Bearer of the plugin"] * 2


async def test_a_plugin_that_gives_nothing_is_named(
    kubeconfig: Path, server: BaseTestServer, tmp_path: Path
) -> None:
    log_in(kubeconfig, server, {"exec": plugin(tmp_path, {})})

    with pytest.raises(NoCluster, match="the login plugin 'cat' of context 'dev' fails"):
        await connect(None)


def plugin(folder: Path, status: dict[str, str]) -> dict[str, Any]:
    """A login plugin, which gives this status."""
    version = "client.authentication.k8s.io/v1"
    answer = folder / "answer.json"
    answer.write_text(
        json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    )
    return {
        "apiVersion": version,
        "command": "cat",
        "args": [str(answer)],
        "interactiveMode": "Never",
    }


async def test_a_redirect_is_not_followed(
    kubeconfig: Path, server: BaseTestServer, api: Api
) -> None:
    """It would show the operator's token to another server."""
    log_in(kubeconfig, server, {"token": "secret"})
    thief = Api()
    async with _server_of(thief) as other:
        api.redirect = str(other.make_url("/"))

        with pytest.raises(Unreachable, match="it redirects to http"):
            await ask(await connect(None))

    assert not thief.tokens


async def test_a_proxy_of_the_environment_is_not_used(
    kubeconfig: Path, server: BaseTestServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's proxy leads out of the cluster, and not to its API server."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    log_in(kubeconfig, server, {"token": "secret"})

    await ask(await connect(None))

    assert len(api.tokens) == 2


async def test_a_pod_uses_its_service_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authorities = Path(certifi.where()).read_text()  # noqa: ASYNC240  # nothing else runs
    files = {"token": "of the pod", "ca.crt": authorities, "namespace": "tandem\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(module, "_NAMESPACE_FILE", tmp_path / "namespace")

    connection = await connect(None)

    shown = await connection.configuration.get_api_key_with_prefix("BearerToken")
    assert shown == "bearer of the pod"
    assert (connection.server, connection.namespace) == ("https://[fd00::1]:443", "tandem")


@pytest.mark.usefixtures("kubeconfig")
async def test_a_context_that_is_not_there() -> None:
    with pytest.raises(NoCluster, match=r"there is no context 'nope' in .*; available: dev"):
        await connect("nope")


@pytest.mark.parametrize("text", ["", "[]", "a: [", "contexts: 1", "clusters: [1]"])
async def test_a_file_that_is_no_kubeconfig(kubeconfig: Path, text: str) -> None:
    kubeconfig.write_text(text)  # noqa: ASYNC240  # nothing else runs

    with pytest.raises(NoCluster, match="is not a kubeconfig"):
        await connect(None)


async def test_a_second_connection_finds_its_inline_certificates_too(kubeconfig: Path) -> None:
    certificate = Authority("test").certificate
    cluster = {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": b64encode(certificate).decode(),
    }
    config = yaml.safe_load(kubeconfig.read_text()) | {  # noqa: ASYNC240  # nothing else runs
        "clusters": [{"name": "dev", "cluster": cluster}]
    }
    kubeconfig.write_text(yaml.safe_dump(config))  # noqa: ASYNC240  # nothing else runs

    first, second = await connect(None), await connect(None)

    assert first.tls.get_ca_certs() == second.tls.get_ca_certs() != []
