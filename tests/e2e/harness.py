"""The `tandem` command as a user runs it: processes, manifests, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tandem_serve.processes import Process, session_members
from tests.patience import HANG_S
from tests.ports import free_port
from tests.tiny import TINY

FIRST_POLL_S, LAST_POLL_S, POLL_GROWTH = 0.05, 1.0, 1.2
LAST_WORDS = 4000
# A usual limit of open files, too low for as many connections as Ray Serve asks HAProxy for.
SHELL = ("sh", "-c", 'ulimit -n 20000; exec "$@"', "sh")


def wait_for(
    condition: Callable[[], bool],
    what: str,
    *,
    timeout_s: float = HANG_S,
    instead: Callable[[], object] = lambda: "",
) -> None:
    """Wait until `condition` holds; fail with `what`, and what is there `instead`, when it does
    not in time.

    It is asked less and less often: a `kubectl` ten times a second takes half a core from what is
    waited for.
    """
    deadline, poll_s = time.monotonic() + timeout_s, FIRST_POLL_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s {instead()}"
        time.sleep(poll_s)
        poll_s = min(poll_s * POLL_GROWTH, LAST_POLL_S)


@dataclass(frozen=True)
class Tandem:
    """The `tandem` command of a user who has nothing else running."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {"XDG_RUNTIME_DIR": str(self.home), "COLUMNS": "200"}
        return {**os.environ, **own}

    def start(self, *arguments: str) -> "Command":
        """Start a command; the caller ends it."""
        output = self.home / f"output-{time.monotonic_ns()}"
        with output.open("w") as file:
            process = subprocess.Popen(
                [*SHELL, sys.executable, "-m", "tandem_serve", *arguments],
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        return Command(self, process, output)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command to its end; return exit code and output."""
        command = self.start(*arguments)
        try:
            return command.wait(), command.output()
        finally:
            command.kill()

    def outputs(self) -> str:
        """The last lines of all commands so far."""
        files = sorted(self.home.glob("output-*"))
        return "\n".join(file.read_text(errors="replace")[-LAST_WORDS:] for file in files)

    def record(self, name: str) -> dict[str, Any] | None:
        """The record of a running service."""
        try:
            text = (self.home / "tandem" / f"{name}.json").read_text()
        except FileNotFoundError:
            return None
        found: dict[str, Any] = json.loads(text)
        return found


@dataclass(frozen=True)
class Command:
    """A command that runs."""

    tandem: Tandem
    process: "subprocess.Popen[bytes]"
    _output: Path

    def output(self) -> str:
        return self._output.read_text()

    def wait(self) -> int:
        return self.process.wait(HANG_S)

    def wait_for_output(self, words: str) -> None:
        def has_words() -> bool:
            assert words in self.output() or self.process.poll() is None, self.output()
            return words in self.output()

        wait_for(has_words, f"'{words}' in the output")

    def interrupt(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Service:
    """A service that serves."""

    tandem: Tandem
    name: str
    manifest: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def traces(self) -> "Traces":
        record = self.tandem.record(self.name)
        assert record is not None
        return Traces(record["pid"], Path(record["run_dir"]))

    def replica_pids(self) -> list[int]:
        """The processes of its replicas."""
        found = self.traces.processes()
        return [one.pid for one in found if _title(one).startswith(b"ray::ServeReplica")]

    def write(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the manifest's file."""
        document = yaml.safe_load(self.manifest.read_text())
        change(document)
        self.manifest.write_text(yaml.safe_dump(document))

    def apply(self) -> str:
        """`tandem apply` of the manifest's file, which must work; return what it said."""
        code, said = self.tandem.run("apply", "-f", str(self.manifest))
        assert code == 0, said
        return said

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=HANG_S, trust_env=False)


@contextmanager
def running_service(
    tandem: Tandem,
    checkpoint: Path,
    *,
    change: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Iterator[Service]:
    """Have a service until the end of the block: `tandem serve` in a process of its own.

    Args:
        tandem: The command.
        checkpoint: The model.
        change: Changes the manifest before.
    """
    service = Service(tandem, "tiny", write_manifest(tandem.home, checkpoint), free_port())
    service.write(change)
    command = tandem.start("serve", "-f", str(service.manifest), "--port", str(service.port))
    try:
        command.wait_for_output("serves at")
        yield service
    finally:
        command.process.send_signal(signal.SIGINT)
        try:
            command.wait()
        finally:
            command.kill()


@dataclass(frozen=True)
class Traces:
    """Traces of a service on this machine: the session of its processes, and its folder."""

    session: int
    run_dir: Path

    def processes(self) -> list[Process]:
        return session_members(self.session)

    def assert_gone(self) -> None:
        assert [_title(one) for one in self.processes()] == []
        assert not self.run_dir.exists()


def _title(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


def write_manifest(folder: Path, checkpoint: Path, *, name: str = "tiny") -> Path:
    """The manifest of the examples, for `checkpoint`."""
    document = yaml.safe_load((TINY / "local.yaml").read_text())
    document["metadata"]["name"] = name
    document["spec"]["model"]["source"] = f"file://{checkpoint}"
    file = folder / "isvc.yaml"
    file.write_text(yaml.safe_dump(document))
    return file
