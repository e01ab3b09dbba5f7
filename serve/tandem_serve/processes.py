"""Processes as /proc shows them: descendants, sessions, and the identity of a pid.

Linux only, standard library only: the supervisor lives on this alone.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_POLL_S: Final = 0.02
GONE: Final = (FileNotFoundError, ProcessLookupError)
"""Errors of reading a process's files when it has ended; any other one says nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    started: int
    """Clock ticks after the machine's start; with the pid it names a process for good."""
    is_zombie: bool


def read_process(pid: int) -> Process | None:
    """The process `pid`, or None when there is none.

    Raises:
        OSError: It cannot be read now, as where no file can be opened; that is no end.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except GONE:
        return None
    # The command may hold spaces and parentheses; what follows the last one does not.
    fields = stat.rpartition(")")[2].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        is_zombie=fields[0] == "Z",
    )


def command_line(pid: int) -> list[str]:
    """Program and arguments of the process `pid`; empty when there is none, or it is a zombie."""
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes()
    except GONE:
        return []
    return text.decode(errors="replace").split("\0")[:-1]


def all_processes() -> list[Process]:
    """Every process that this user can see."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return [process for pid in pids if (process := _read_visible(pid)) is not None]


def _read_visible(pid: int) -> Process | None:
    try:
        return read_process(pid)
    except PermissionError:
        return None  # /proc is mounted with hidepid, and it is another user's


def descendants(root: int) -> list[Process]:
    """Return children of `root`, their children, and so on, of all sessions."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    below, parents = [], [root]
    while parents:
        offspring = children.get(parents.pop(), [])
        below += offspring
        parents += [process.pid for process in offspring]
    return below


def session_members(session: int) -> list[Process]:
    """Processes of a session that are not zombies."""
    return [
        process
        for process in all_processes()
        if process.session == session and not process.is_zombie
    ]


def is_alive(pid: int, started: int) -> bool:
    """True when `pid` is still the process that started at `started`.

    Raises:
        OSError: See `read_process`.
    """
    process = read_process(pid)
    return process is not None and process.started == started and not process.is_zombie


def wait_until_gone(pid: int, started: int, *, timeout_s: float) -> bool:
    """Wait for a process that is not a child of ours; return True if it ended in time.

    Raises:
        OSError: See `read_process`.
    """
    deadline = time.monotonic() + timeout_s
    while is_alive(pid, started):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def kill_all(processes: Iterable[Process]) -> None:
    """SIGKILL each of `processes`; one that is gone, or another's, is skipped."""
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def signal_socket(numbers: Iterable[signal.Signals]) -> socket.socket:
    """Catch `numbers`; return a socket from which the number of each arriving signal is read."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.settimeout(0)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reader
