"""The rank whose turn it is is found when it makes no progress, and no other is blamed for it."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.world import WORLD, Group, WorldShape
from tests.descriptors import no_descriptor_left
from tests.unit.engine.parallel.rank_processes import ranks_of, run_ranks, two_by_two
from tests.unit.engine.parallel.silence import (
    cause_of,
    loops,
    passes_on,
    sleeps,
    sleeps_with_a_busy_thread,
    sums_for_ever,
)

EIGHT = WorldShape(8, (*(Group("tp", (at, at + 1)) for at in (0, 2, 4, 6)), Group("ends", (0, 7))))
BOUND_S = 2.0
"""Far more than a rank that computes goes without a core on a busy machine."""


@pytest.mark.parametrize(
    ("shape", "scenario", "groups", "culprit"),
    [
        pytest.param(WorldShape(3), sums_for_ever, [WORLD], 2, marks=pytest.mark.slow),
        pytest.param(WorldShape(3), passes_on, [], 2, marks=pytest.mark.slow),
        pytest.param(WorldShape(4), passes_on, [], 3, marks=pytest.mark.slow),
        (two_by_two(), sums_for_ever, ["tp", "pp"], 3),
        (EIGHT, passes_on, [], 7),
    ],
    ids=["sums of three", "stages of three", "stages of four", "tp2-pp2", "stages of eight"],
)
def test_a_stopped_rank_is_named_by_all(
    shape: WorldShape, scenario: Callable[..., None], groups: list[str], culprit: int
) -> None:
    with ranks_of(shape, scenario, *groups, timeout_s=BOUND_S) as ranks:
        for rank in ranks:
            rank.wait_until_joined()
        os.kill(ranks[culprit].pid, signal.SIGSTOP)
        cause = cause_of(ranks, culprit)
        os.kill(ranks[culprit].pid, signal.SIGCONT)

    assert cause == "has been silent for 2 s, and is stopped."


@pytest.mark.parametrize("hangs", [sleeps, sleeps_with_a_busy_thread])
@pytest.mark.parametrize(
    "shape",
    [pytest.param(WorldShape(3), marks=pytest.mark.slow), EIGHT],
    ids=["three", "eight"],
)
def test_a_rank_that_hangs_is_found_and_not_the_one_that_waits_for_it(
    shape: WorldShape, hangs: Callable[..., None]
) -> None:
    culprit = shape.size - 1
    with ranks_of(shape, passes_on, others={culprit: hangs}, timeout_s=BOUND_S) as ranks:
        cause = cause_of(ranks, culprit)

    assert cause == "has been silent for 2 s."


def test_a_rank_that_computes_without_an_end_is_found() -> None:
    with ranks_of(
        WorldShape(3), passes_on, others={2: loops}, timeout_s=3600, endless_s=3.0
    ) as ranks:
        cause = cause_of(ranks, 2)

    assert cause == "has computed for 3 s without an end."


def waits_without_descriptors(communicator: Communicator, seconds: float) -> int:
    """Wait for a slow rank while this process can open nothing more."""
    if communicator.rank == 1:
        time.sleep(seconds)
        communicator.all_reduce(torch.ones(5))
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 64), hard))
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        communicator.all_reduce(torch.ones(5))
    finally:
        for file in taken:
            os.close(file)
    return len(taken)


def test_a_rank_without_file_descriptors_takes_no_other_for_a_dead_one() -> None:
    taken, _, _ = run_ranks(WorldShape(3), waits_without_descriptors, 1.0, timeout_s=3600)

    assert taken > 0


def ends_without_descriptors(communicator: Communicator, *_: Any) -> None:
    with no_descriptor_left():
        communicator.all_reduce(torch.ones(5))


def test_a_dead_rank_is_seen_without_file_descriptors() -> None:
    with ranks_of(
        WorldShape(3), ends_without_descriptors, others={2: sleeps}, timeout_s=3600
    ) as ranks:
        for rank in ranks:
            rank.wait_until_joined()
        os.kill(ranks[2].pid, signal.SIGKILL)
        cause = cause_of(ranks, 2)

    assert cause == "has ended."


def aborts_from_two_threads(communicator: Communicator, *_: Any) -> None:
    begin = threading.Barrier(2)

    def abort(cause: str) -> None:
        begin.wait()
        communicator.abort(cause)

    threads = [threading.Thread(target=abort, args=(cause,)) for cause in ("a" * 900, "b" * 900)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    communicator.all_reduce(torch.ones(5))


def test_the_cause_of_two_threads_is_that_of_one_of_them() -> None:
    with ranks_of(
        WorldShape(2), sums_for_ever, WORLD, others={1: aborts_from_two_threads}, timeout_s=3600
    ) as ranks:
        errors = [rank.error() for rank in ranks]

    (cause,) = {error.cause for error in errors if isinstance(error, CollectiveError)}
    assert cause in {"a" * 900, "b" * 900}
