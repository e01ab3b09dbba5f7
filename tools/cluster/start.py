"""Starts a cluster's keeper and follows it until the node is ready."""

import json
import selectors
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from tools.cluster import registry, remains
from tools.cluster.build import locked
from tools.cluster.errors import AlreadyUp, ClusterError
from tools.cluster.paths import CHECKOUT, cache
from tools.cluster.prepare import Prepared
from tools.cluster.progress import Progress, Tell
from tools.cluster.state import DETACH, Files, Order, Phase

OnLog = Callable[[str], None]
"""Takes the lines of the parts' logs."""

_ROUND_S: Final = 0.2


def launch(order: Order, prepared: Prepared, progress: Progress, on_log: OnLog | None) -> None:
    """Start what `order` asks for and return when it is ready; else leave nothing of it.

    Raises:
        AlreadyUp: a cluster of the name runs or is being started.
        ClusterError: a part failed.
    """
    files = Files(Path(order.folder))
    with progress.phase(f"start cluster {order.name}") as tell:
        keeper = _Keeper(order, prepared)
        try:
            keeper.follow(tell, _LogTail(files.logs, on_log))
            keeper.detach()
        finally:
            keeper.close()


class _Keeper:
    """The keeper while its caller holds it: it ends when this is closed before `detach`."""

    def __init__(self, order: Order, prepared: Prepared) -> None:
        self._name = order.name
        self._is_detached = False
        files = Files(Path(order.folder))
        with locked(cache().start_lock):
            _make_room(files)
            try:
                _write_files(files, order, prepared)
                self._process, self._orders, self._events = _spawn(files)
            except BaseException:
                remains.remove_folder(files)
                raise
            # The name is taken once the keeper has written its record.
            self._read_event()

    def follow(self, tell: Tell, logs: "_LogTail") -> None:
        """Tell what gets ready until all is."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while True:
                logs.pass_on()
                if not selector.select(_ROUND_S):
                    continue
                event, text = self._read_event()
                if event == "ready":
                    return
                tell(text)

    def detach(self) -> None:
        """Let the cluster outlive this process."""
        self._orders.write(DETACH)
        self._is_detached = True

    def close(self) -> None:
        """Let go of the keeper; if it was not told to stay, wait until it has ended."""
        self._orders.close()
        self._events.close()
        if self._is_detached:
            # It is no child to wait for any more.
            self._process.returncode = 0
            return
        self._process.wait()

    def _read_event(self) -> tuple[str, str]:
        line = self._events.readline()
        logs = remains.last_logs(registry.files_of(self._name).folder)
        if not line:
            raise ClusterError(f"cluster {self._name} ended while it started; see {logs}")
        event: dict[str, str] = json.loads(line)
        if event["event"] == "failed":
            raise ClusterError(
                f"cluster {self._name} cannot start: {event['text']}\nIts logs are in {logs}"
            )
        return event["event"], event["text"]


def _make_room(files: Files) -> None:
    """Refuse a name that is taken; clean up after a cluster that was killed."""
    name = files.folder.name
    phase = registry.phase_of(name)
    if phase is Phase.BROKEN:
        registry.end_claimed(files)
    elif phase is not None:
        doing = "is up" if phase is Phase.READY else "is being started by another process"
        raise AlreadyUp(f"cluster {name} {doing}")


def _write_files(files: Files, order: Order, prepared: Prepared) -> None:
    files.folder.mkdir(parents=True, mode=0o700)
    for folder in (files.logs, files.root, files.data, files.programs):
        folder.mkdir()
    for name, program in prepared.built.programs.items():
        (files.programs / name).symlink_to(program)
    files.order.write_text(order.to_json(), encoding="utf-8")


def _spawn(files: Files) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """Start the keeper; also returns the pipe to it and the pipe from it."""
    with (files.logs / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.cluster.keeper", str(files.order)],
            cwd=CHECKOUT,
            # A reader of a pipe gets each line when it is written.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C on the terminal is for the command; what follows from it, it decides.
            start_new_session=True,
        )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("Popen was asked for pipes")
    return process, process.stdin, process.stdout


class _LogTail:
    """Passes on what was added to the logs since the last time."""

    def __init__(self, folder: Path, on_log: OnLog | None) -> None:
        self._folder = folder
        self._on_log = on_log
        self._read: dict[Path, int] = {}

    def pass_on(self) -> None:
        """Give every whole new line to the listener, if there is one."""
        if self._on_log is None:
            return
        for log in sorted(self._folder.glob("*.log")):
            with log.open("rb") as stream:
                stream.seek(self._read.get(log, 0))
                text = stream.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[log] = self._read.get(log, 0) + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._on_log(f"{log.stem}: {line}")
