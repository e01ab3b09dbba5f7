"""The stand-in for the API server, and a kubeconfig that leads there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tandem_serve.cli import add_commands_of_others, app
from tests.unit.operator.commands.api_server import ApiServer, write_kubeconfig


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = {command.name for command in app.registered_commands}
    if "explain" not in registered:
        add_commands_of_others()
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("tandem_operator.commands.cluster._BETWEEN_WATCHES_S", 0.01)


@contextmanager
def serving(api: ApiServer) -> Iterator[ApiServer]:
    with api:
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[ApiServer], ApiServer]]:
    """Runs servers until the test ends."""
    with ExitStack() as stack:
        yield lambda api: stack.enter_context(serving(api))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving(ApiServer()) as api:
        yield api


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ApiServer) -> Path:
    path = write_kubeconfig(tmp_path / "config", server.url)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path
