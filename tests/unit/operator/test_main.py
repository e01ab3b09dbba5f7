"""Messages of the command when it cannot start."""

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tandem_operator.main import _app

SETTINGS = {"replica": {"image": "registry/tandem:1"}}
CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "dev",
    "clusters": [{"name": "dev", "cluster": {"server": "https://127.0.0.1:1"}}],
    "contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "me"}}],
    "users": [{"name": "me", "user": {"token": "secret"}}],
}
PLUGIN = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "false"}}


@pytest.fixture(autouse=True)
def _in_no_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "kubeconfig", CONFIG)))


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


def said(tmp_path: Path, *options: str, settings: dict[str, Any] | None = None) -> str:
    """Return the command's output when it ends with 2."""
    path = write(tmp_path / "operator.yaml", settings or SETTINGS)
    result = CliRunner().invoke(_app, [f"--config={path}", *options])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_settings_that_are_not_there(tmp_path: Path) -> None:
    assert "no such file; name one with --config" in said(tmp_path, "--config=nowhere")


def test_settings_with_a_wrong_field(tmp_path: Path) -> None:
    wrong = {"replica": {"imag": "x"}}

    assert "unknown field 'imag'; did you mean 'image'?" in said(tmp_path, settings=wrong)


def test_a_context_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no context 'nope'" in said(tmp_path, "--context=nope")


def test_no_kubernetes_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    assert "set KUBECONFIG to a kubeconfig" in said(tmp_path)


def test_a_login_plugin_that_fails(tmp_path: Path) -> None:
    write(tmp_path / "kubeconfig", {**CONFIG, "users": [{"name": "me", "user": PLUGIN}]})

    assert "the login plugin 'false' of context 'dev' fails" in said(tmp_path)


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": "/nowhere.crt"}
    write(tmp_path / "kubeconfig", {**CONFIG, "clusters": [{"name": "dev", "cluster": cluster}]})

    assert "the certificates of context 'dev' cannot be used" in said(tmp_path, "--port=0")


def test_certificates_that_are_none(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.crt"
    certificate.write_text("no certificate")
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": str(certificate)}
    write(tmp_path / "kubeconfig", {**CONFIG, "clusters": [{"name": "dev", "cluster": cluster}]})

    assert "the certificates of context 'dev' cannot be used" in said(tmp_path, "--port=0")


def test_a_namespace_that_cannot_be(tmp_path: Path) -> None:
    assert "'A b' is not the name of a namespace" in said(tmp_path, "--namespace=A b")


def test_an_address_of_ray_with_an_unknown_field(tmp_path: Path) -> None:
    assert "another field than {ip}" in said(tmp_path, "--ray-address=http://{host}")


def test_the_token_is_not_said(tmp_path: Path) -> None:
    assert "secret" not in said(tmp_path, "--context=nope")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]

        assert f"cannot listen on port {port}" in said(tmp_path, f"--port={port}")
