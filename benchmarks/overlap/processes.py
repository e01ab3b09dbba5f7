"""Processes of the benchmark: each has a pipe, and none outlives the block that it is used in."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.overlap.cases import RANKS
from benchmarks.serving.errors import BenchmarkError


@contextmanager
def started(
    main: Callable[..., None], *arguments: object, name: str, end_s: float
) -> Iterator[Connection]:
    """Start a process, and give this end of its pipe.

    Args:
        main: The function that it runs; its last argument is the other end of the pipe.
        arguments: Those before.
        name: For its log.
        end_s: Time that it has to end when its pipe does.
    """
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    # Not a daemon: those have no children, and a replica starts ranks.
    process = context.Process(target=_run, args=(main, *arguments, other), name=name)
    process.start()
    other.close()
    try:
        yield own
    finally:
        own.close()
        process.join(end_s)
        process.kill()
        process.join()


def _run(main: Callable[..., None], *arguments: object) -> None:
    # A terminal sends it to all processes; the one that started this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(*arguments)


def receive(connection: Connection) -> Any:
    """The next answer of a process.

    Raises:
        BenchmarkError: It has ended.
    """
    try:
        return connection.recv()
    except EOFError:
        raise BenchmarkError("A process ended before all was measured; see above.") from None


def cores_of_ranks() -> tuple[int, int]:
    """A core for each of the two ranks.

    Raises:
        BenchmarkError: There are too few.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < RANKS:
        raise BenchmarkError(
            f"There is {len(cores)} core, and each of the {RANKS} ranks needs one of its own."
        )
    return cores[0], cores[1]
