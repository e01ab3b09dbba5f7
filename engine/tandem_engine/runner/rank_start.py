"""The first code of a rank that is a child of rank 0's process; it imports no torch.

Importing that takes a rank seconds, in which it must end with rank 0, too.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Final, Protocol

_PR_SET_PDEATHSIG: Final = 1


class Task(Protocol):
    """The work of a rank's process; can be pickled."""

    def run(self, connection: Connection) -> None:
        """Be the rank."""


class SealedTask:
    """A task that arrives as bytes: what it is made of is imported when `open` is called.

    Args:
        task: Pickled when the process is spawned, so that it may hold connections.
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    def __reduce__(self) -> tuple[Callable[[bytes], "_Arrived"], tuple[bytes]]:
        return _Arrived, (bytes(ForkingPickler.dumps(self._task)),)

    def open(self) -> Task:
        """The task."""
        return self._task


class _Arrived(SealedTask):
    """One in the process that was spawned."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def open(self) -> Task:
        task: Task = ForkingPickler.loads(self._pickled)
        return task


def start_rank(connection: Connection, process: int, task: SealedTask) -> None:
    """Run a task in this process, which ends with the one that has started it.

    Args:
        connection: To rank 0.
        process: That of rank 0.
        task: Of this rank.
    """
    _end_with(process)
    # A terminal sends it to all processes; rank 0 decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task.open().run(connection)


def _end_with(process: int) -> None:
    """Have this process killed when the one that started it ends, even while this is stopped."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != process:
        raise SystemExit("Rank 0 has ended while this rank started.")
