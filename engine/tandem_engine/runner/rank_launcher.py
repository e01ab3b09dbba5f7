"""How the processes of ranks come to be: the interface, and children of rank 0's process.

`tandem_serve.rank_actors` has the launcher for Ray, where another process starts them.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, Protocol

from tandem_engine.api.errors import EngineError
from tandem_engine.runner.rank_process import GroupAddress, RankSettings, run_rank
from tandem_engine.runner.rank_start import SealedTask, start_rank

REAP_TIMEOUT_S: Final = 1.0
"""Time between what others notice of the end of a process, and its exit status."""


class RankStartError(EngineError):
    """A rank cannot start; the text names it and the cause."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """All that a process needs to be a rank; can be pickled."""

    rank: int
    settings: RankSettings
    address: GroupAddress

    def run(self, connection: Connection) -> None:
        """Be the rank until rank 0 ends the group; see `run_rank`.

        The process must end with rank 0's, however that ends: a launcher sees to it.
        """
        run_rank(connection, self.settings, self.address, self.rank)


class RankHandle(Protocol):
    """A rank that a launcher has started, as rank 0 sees it."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def pid(self) -> int:
        """Its process, from `connect` on."""

    @property
    def connection(self) -> Connection:
        """For messages while it starts, from `connect` on; its process's end closes it."""

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable when its process has ended, from `connect` on."""

    def connect(self, timeout_s: float) -> None:
        """Wait until its process runs and is connected.

        Raises:
            RankStartError: It has ended, or is not there in time.
        """

    def how_killed(self) -> str | None:
        """What has ended its process from outside, as a predicate; None: it runs, or ended itself.

        It may wait for a moment when the process has just ended.
        """

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of its process; True when it has ended."""

    def close(self) -> None:
        """Kill its process if it runs, wait for its end, and free what belongs to it."""


class RankLauncher(Protocol):
    """Starts the ranks of a group, and sees to it that they end with rank 0's process."""

    def launch(self, tasks: Sequence[RankTask]) -> Sequence[RankHandle]:
        """Start a process for each task without waiting for it.

        Raises:
            RankStartError: One of them cannot be; then none is left.
        """

    def close(self) -> None:
        """Free what is left when all handles are closed. May be called again."""


class ProcessLauncher:
    """Starts ranks as children of this process; the kernel kills them when it ends."""

    def __init__(self) -> None:
        # The kernel ends a rank with the thread that started it; this one lasts until `close`.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="ranks")

    def launch(self, tasks: Sequence[RankTask]) -> Sequence[RankHandle]:
        """Start a process for each task; see `RankLauncher`."""
        started: list[_RankProcess] = []
        try:
            started.extend(self._starter.submit(_start, task).result() for task in tasks)
        except BaseException:
            for handle in started:
                handle.close()
            raise
        return started

    def close(self) -> None:
        """End the thread that has started them."""
        self._starter.shutdown()


class _RankProcess:
    """Implements `RankHandle` on a child of this process."""

    def __init__(self, rank: int, process: BaseProcess, connection: Connection) -> None:
        self.rank = rank
        self.pid = process.pid or 0
        self.connection = connection
        self._process = process

    @property
    def sentinel(self) -> int:
        return self._process.sentinel

    def connect(self, timeout_s: float) -> None:
        """Nothing to wait for: the pipe was there before the process."""

    def how_killed(self) -> str | None:
        if wait([self._process.sentinel], 0):
            self._process.join(REAP_TIMEOUT_S)
        code = self._process.exitcode or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else None

    def join(self, timeout_s: float) -> bool:
        self._process.join(timeout_s)
        return self._process.exitcode is not None

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _start(task: RankTask) -> _RankProcess:
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(
        target=start_rank,
        args=(other, task.address.process, SealedTask(task)),
        name=f"rank {task.rank}",
        daemon=True,
    )
    process.start()
    # So that the end of the process is the end of the pipe.
    other.close()
    return _RankProcess(task.rank, process, own)
