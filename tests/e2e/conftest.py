"""A service as a user runs it: `tandem serve` in a process of its own, on ports of its own."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Service, Tandem, free_port, write_manifest
from tests.tiny import TINY


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The trained model of the examples."""
    return TINY


@pytest.fixture
def tandem(tmp_path: Path) -> Tandem:
    """The command, with no service running."""
    return Tandem(tmp_path)


@pytest.fixture(scope="session")
def service(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that runs for all tests of the session; put back what you change."""
    tandem = Tandem(tmp_path_factory.mktemp("service"))
    manifest, port = write_manifest(tandem.home, checkpoint), free_port()
    command = tandem.start("serve", "-f", str(manifest), "--port", str(port))
    try:
        command.wait_for_output("serves at")
        yield Service(tandem, "tiny", manifest, port)
    finally:
        command.process.send_signal(signal.SIGINT)
        try:
            command.wait()
        finally:
            command.kill()
