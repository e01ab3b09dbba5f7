"""Kubeconfigs: several merged as kubectl does, and the ways in that they name."""

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import incluster_config

from tandem_operator.k8s.kubeconfig import read_context
from tests.unit.operator.commands.api_server import (
    ApiServer,
    Raw,
    error_of,
    of_namespace,
    refusal,
    run,
    service,
    write_kubeconfig,
)

MODELS = of_namespace("models")
Use = Callable[..., None]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes documents, in folders of their own, the kubeconfigs; None: a file that is missing."""

    def write(*documents: dict[str, Any] | str | None) -> None:
        paths = []
        for number, document in enumerate(documents):
            path = tmp_path / str(number) / "config"
            path.parent.mkdir()
            paths.append(str(path))
            if document is not None:
                path.write_text(document if isinstance(document, str) else yaml.dump(document))
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))

    return write


def document(
    current: str | None, *, cluster: Any = None, user: Any = None, context: Any = None
) -> dict[str, Any]:
    entries = {
        f"{kind}s": [{"name": name, kind: entry} for name, entry in (given or {}).items()]
        for kind, given in (("cluster", cluster), ("user", user), ("context", context))
    }
    return entries | ({} if current is None else {"current-context": current})


HOME = {"home": {"cluster": "here", "user": "me"}}
HERE = {"here": {"server": "https://here:1"}}


# Several files


def test_the_first_entry_of_a_name_counts(use: Use) -> None:
    there = {"home": {"cluster": "there"}, "other": {"cluster": "there", "namespace": "team"}}
    use(
        None,
        "",
        document("", cluster=HERE, context=HOME, user={"me": {}}),
        document("home", cluster={"here": {}, "there": {}}, context=there),
        document("other"),
    )

    assert read_context(None).cluster == HERE["here"]
    assert read_context(None).namespace == "default"
    assert read_context("other").namespace == "team"


def test_files_are_looked_for_beside_the_kubeconfig_that_names_them(
    use: Use, tmp_path: Path
) -> None:
    user = {"tokenFile": "token", "client-key": "/etc/key", "client-certificate": ""}
    use(
        document("home", context=HOME, cluster={"here": {"certificate-authority": "../ca"}}),
        document(None, user={"me": user}),
    )

    found = read_context(None)

    assert found.cluster == {"certificate-authority": str(tmp_path / "0" / "../ca")}
    assert found.user == {"tokenFile": str(tmp_path / "1" / "token"), "client-key": "/etc/key"}
    assert found.folder == tmp_path / "1"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (document(None, cluster=HERE, user={"me": {}}, context=HOME), "has no current context"),
        (document("home", cluster=HERE, context=HOME), "context 'home' names user 'me', which is"),
        (document("home", context=HOME), "context 'home' names cluster 'here', which is not in it"),
        (document("gone", context=HOME), "there is no context 'gone' in"),
        (document("home", cluster={"here": {}}, user={"me": {}}, context=HOME), "is '', which is"),
        (
            document("home", cluster={"here": {"server": "h:1"}}, user={"me": {}}, context=HOME),
            "the server of context 'home' is 'h:1', which is not a URL; write https://HOST:PORT",
        ),
        ({"contexts": [{"context": {}}]}, "is not a kubeconfig (KeyError: 'name')"),
        ({"contexts": [{"name": "x", "context": 1}]}, "is not a kubeconfig (AttributeError: "),
        ({"contexts": 1}, "is not a kubeconfig (TypeError: "),
    ],
)
def test_a_kubeconfig_that_leads_nowhere(use: Use, one: dict[str, Any], words: str) -> None:
    use(one)

    assert words in error_of("get")


def test_a_broken_kubeconfig_is_not_quoted(use: Use) -> None:
    use("users:\n- name: me\n  user: {token: secret")

    said = error_of("get")

    assert "(YamlError: line 3, column " in said
    assert "secret" not in said


# Ways in


@pytest.fixture
def login(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], None]:
    """Makes the given user the one who asks."""
    server.lists[MODELS] = [service("tiny")]

    def write(user: dict[str, Any]) -> None:
        path = write_kubeconfig(tmp_path / "config", server.url, user=user)
        monkeypatch.setenv("KUBECONFIG", str(path))

    return write


Login = Callable[[dict[str, Any]], None]


def authorization(server: ApiServer) -> str | None:
    return server.requests[-1].headers.get("Authorization")


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, None),
        ({"token": ""}, None),
        ({"token": "secret"}, "Bearer secret"),
        ({"tokenFile": "token", "token": "old"}, "Bearer from file"),
        ({"username": "me", "password": "pass"}, "Basic bWU6cGFzcw=="),
    ],
)
def test_a_user_is_known_by(
    server: ApiServer, login: Login, tmp_path: Path, user: dict[str, Any], header: str | None
) -> None:
    (tmp_path / "token").write_text("from file\n")
    login(user)

    assert run("get").exit_code == 0
    assert authorization(server) == header


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"tokenFile": "none"}, "the token of context 'home' cannot be read ("),
        ({"token": "sec\nret"}, "the token of context 'home' has characters that HTTP does not"),
        ({"auth-provider": {"name": "oidc"}}, "logs in with auth-provider 'oidc', which is not"),
    ],
)
def test_a_way_in_that_leads_nowhere(login: Login, user: dict[str, Any], words: str) -> None:
    login(user)

    said = error_of("get")

    assert words in said
    assert "ret" not in said.replace("secret", "")


def plugin(folder: Path, script: str, **more: Any) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": API, "command": "./plugin", **more}}


API = "client.authentication.k8s.io/v1"


def answer(status: dict[str, str]) -> str:
    document = {"apiVersion": API, "kind": "ExecCredential", "status": status}
    return f"echo '{json.dumps(document)}'"


def test_a_plugin_logs_in_again_when_its_token_has_expired(
    server: ApiServer, login: Login, tmp_path: Path
) -> None:
    # A token for each login: 1, 11, 111.
    script = "printf 1 >> count; TOKEN=$(cat count)$SUFFIX\n"
    script += answer({"token": "TOKEN"}).replace("TOKEN", "'$TOKEN'")
    login(plugin(tmp_path, script, env=[{"name": "SUFFIX", "value": "x"}]))
    server.watched = [refusal(401, "expired"), [], refusal(401, "expired"), refusal(401, "gone")]

    said = error_of("get", "-w")

    assert "does not know you (gone)" in said
    tokens = [request.headers["Authorization"] for request in server.requests]
    assert tokens == [f"Bearer {n}x" for n in (1, 1, 1, 11, 11, 111)]


def test_a_plugin_is_not_asked_twice_for_a_token_that_was_never_taken(
    server: ApiServer, login: Login, tmp_path: Path
) -> None:
    login(plugin(tmp_path, "printf 1 >> count\n" + answer({"token": "wrong"})))
    server.lists.clear()
    server.refusals[MODELS] = (401, "who are you?")

    assert "does not know you (who are you?)" in error_of("get")
    assert (tmp_path / "count").read_text() == "1"


def test_a_plugin_gives_a_certificate(login: Login, tmp_path: Path) -> None:
    pair = {"clientCertificateData": "no PEM", "clientKeyData": "no PEM"}
    login(plugin(tmp_path, answer(pair)))

    # The stand-in speaks HTTP without TLS, where certificates are of no use.
    assert run("get").exit_code == 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo who are you? >&2; exit 3", "(process returned 3. who are you?)"),
        ("echo hm", "(failed to decode process output: "),
        ("echo '{}'", "(malformed response. missing key 'apiVersion')"),
        (answer({}), "(its answer has neither a token nor a certificate with key)"),
        (
            answer({"clientCertificateData": "x"}),
            "(its answer has neither a token nor a certificate",
        ),
        (answer({"token": "x"}).replace("k8s.io/v1", "k8s.io/v2"), "(plugin api version "),
    ],
)
def test_a_plugin_that_fails(login: Login, tmp_path: Path, script: str, words: str) -> None:
    login(plugin(tmp_path, script))

    said = error_of("get")

    assert said.startswith("the login plugin './plugin' of context 'home' fails (")
    assert words in said
    assert said.endswith("; log in as kubectl needs it, or name another context with --context")


def test_a_plugin_that_fails_on_a_terminal_has_said_why(login: Login, tmp_path: Path) -> None:
    login(plugin(tmp_path, "echo who are you? >&2; exit 3"))
    ours, theirs = pty.openpty()
    command = "import tandem_serve.cli; tandem_serve.cli.main()"

    with subprocess.Popen(
        [sys.executable, "-c", command, "get"], stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        code = process.wait()
    said = " ".join(os.read(ours, 10_000).decode().split())
    os.close(ours)

    assert code == 1
    assert said.startswith("who are you? error: the login plugin './plugin' of context 'home' f")
    assert "(its own message is above)" in said


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"apiVersion": API, "command": "no-such-plugin"}, "'no-such-plugin' of context 'home' f"),
        (
            {"apiVersion": API, "command": "no-such-plugin", "installHint": "brew\ninstall it"},
            "(it is not installed: brew install it)",
        ),
        ({"apiVersion": API}, "missing key 'command'"),
        ({"command": "x"}, "missing key 'apiVersion'"),
        ("x", "the login plugin 'x' of context 'home' fails ("),
    ],
)
def test_a_plugin_that_is_not_there(login: Login, user: Any, words: str) -> None:
    login({"exec": user})

    assert words in error_of("get")


def test_a_pod_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ApiServer
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "namespace").write_text("team\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))

    assert error_of("get").startswith("this pod's service account cannot be used (Service host")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
    assert error_of("get").startswith("this pod's service account cannot be used (Service cert")
    (tmp_path / "ca.crt").write_text("no PEM")
    assert "set KUBECONFIG to a kubeconfig" in error_of("get")

    server.raw[of_namespace("team")] = Raw(200, b"")
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", server.url)))
    assert error_of("get").startswith("the Kubernetes at ")
