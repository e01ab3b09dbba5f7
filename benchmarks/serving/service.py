"""A Tandem service for the time of a benchmark, run with the `tandem` command."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.serving.errors import BenchmarkError
from tandem_serve.local.records import find_record

_STOP_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that this process started."""

    url: str
    """With /v1."""
    name: str
    command: str
    """The `tandem` that started it."""
    manifest: str
    """With every default filled in, under its own name."""

    @property
    def session(self) -> int:
        """The session of all of its processes."""
        record = find_record(self.name)
        if record is None:
            raise BenchmarkError(f"The service {self.name} has ended.")
        return record.pid

    def apply(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Apply its manifest, changed, and wait until that has taken effect.

        Raises:
            BenchmarkError: it is refused.
        """
        document = yaml.safe_load(self.manifest)
        change(document)
        done = subprocess.run(
            [self.command, "apply", "-f", "-"],
            input=yaml.safe_dump(document, sort_keys=False),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(f"tandem apply: {(done.stderr or done.stdout).strip()}")


@contextmanager
def running_service(manifest: Path, *, command: str | None = None) -> Iterator[str]:
    """Serve `manifest` as `started_service` does, and give its URL alone."""
    with started_service(manifest, command=command) as service:
        yield service.url


@contextmanager
def started_service(manifest: Path, *, command: str | None = None) -> Iterator[RunningService]:
    """Serve `manifest` under a name and port of its own; stop it afterwards.

    Args:
        manifest: file of an InferenceService.
        command: the `tandem` to use; None looks for one.

    Raises:
        BenchmarkError: the service does not start.
    """
    command = command or _tandem_command()
    port = _free_port()
    name = f"bench-{os.getpid()}"
    renamed = _renamed(command, manifest, name)
    _start(command, renamed, name, port)
    try:
        yield RunningService(f"http://127.0.0.1:{port}/v1", name, command, renamed)
    finally:
        _stop(command, name)


def _tandem_command() -> str:
    """The `tandem` of this Python, or else the one on the path."""
    beside = Path(sys.executable).with_name("tandem")
    command = str(beside) if beside.exists() else shutil.which("tandem")
    if command is None:
        raise BenchmarkError("cannot find the tandem command; install Tandem, or give --url.")
    return command


def _renamed(command: str, manifest: Path, name: str) -> str:
    """The manifest with every default filled in, under a name of its own."""
    done = subprocess.run(
        [command, "validate", "-f", str(manifest)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"{manifest} cannot be served; name a manifest with -f, or a --url.")
    document: dict[str, Any] = yaml.safe_load(done.stdout)
    document["metadata"]["name"] = name
    return yaml.safe_dump(document, sort_keys=False)


def _start(command: str, manifest: str, name: str, port: int) -> None:
    # In a session of its own: Ctrl-C reaches it through us alone, and once.
    starting = subprocess.Popen(
        [command, "serve", "-f", "-", "--port", str(port), "--detach"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        starting.communicate(manifest)
    except BaseException:
        starting.send_signal(signal.SIGINT)
        if starting.wait(_STOP_TIMEOUT_S) == 0:  # It was through already.
            _stop(command, name)
        raise
    if starting.returncode:
        raise BenchmarkError("The service did not start; see the output of tandem serve above.")


def _stop(command: str, name: str) -> None:
    # An impatient second Ctrl-C must not leave a server behind; the child ignores it too.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        subprocess.run(
            [command, "stop", name],
            stdout=subprocess.DEVNULL,
            timeout=_STOP_TIMEOUT_S,
            check=False,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
