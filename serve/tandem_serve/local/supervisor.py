"""`python -m tandem_serve.local.supervisor`: runs Ray's head, and leaves nothing of it behind.

It owns all processes, the run folder and the record of one local service. It ends them when

- Ray's head ends,
- it gets SIGTERM, SIGINT or SIGHUP,
- its standard input closes before it read `detach`: the command that started it is gone,
  however it died.

Every orphan below it becomes its child (PR_SET_CHILD_SUBREAPER), so that the process tree is
complete whatever session or group a process chose. Standard library only: it starts in an
instant and stays small.
"""

import argparse
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem_serve.processes import descendants, kill_all, signal_socket

DETACH: Final = b"detach\n"
EXIT_STOPPED: Final = 0
EXIT_HEAD_DIED: Final = 1

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command given after `--` until something ends it; return the exit code."""
    options = _parse(arguments)
    _control_process(_PR_SET_CHILD_SUBREAPER, 1)
    signals = signal_socket((*_END_SIGNALS, signal.SIGCHLD))
    head = _start_head(options.command)
    try:
        return _watch(head, signals)
    finally:
        _end_descendants()
        _remove(options.run_dir, options.record)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def _control_process(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _start_head(command: Sequence[str]) -> int:
    head = subprocess.Popen(  # noqa: S603  # the command that `tandem serve` made
        command,
        stdin=subprocess.DEVNULL,
        # If this process is killed outright, Ray's head at least shuts its node down.
        preexec_fn=lambda: _control_process(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
    )
    return head.pid


def _watch(head: int, signals: socket.socket) -> int:
    """Wait for a reason to end; return the exit code that it means."""
    with selectors.DefaultSelector() as selector:
        selector.register(signals, selectors.EVENT_READ)
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not signals:
                    if os.read(sys.stdin.fileno(), len(DETACH)) != DETACH:
                        return EXIT_STOPPED
                    selector.unregister(sys.stdin.buffer)
                elif not set(signals.recv(4096)).isdisjoint(_END_SIGNALS):
                    return EXIT_STOPPED
                elif head in _reap():
                    return EXIT_HEAD_DIED


def _reap() -> set[int]:
    """Reap the children that have exited; return their pids."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.add(pid)


def _end_descendants() -> None:
    """Kill all that descends from this process until nothing does."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        _reap()
        left = descendants(os.getpid())
        if not left:
            return
        kill_all(left)
        time.sleep(_POLL_S)


def _remove(run_dir: Path, record: Path) -> None:
    shutil.rmtree(run_dir, ignore_errors=True)
    # A record that another service of the same name made first is not ours.
    with suppress(OSError, ValueError):
        if json.loads(record.read_text(encoding="utf-8"))["pid"] == os.getpid():
            record.unlink()


if __name__ == "__main__":
    sys.exit(main())
