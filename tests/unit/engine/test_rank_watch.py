"""The thread that waits for the end of ranks: each way in which they end, and none."""

import os
import threading
from collections.abc import Iterator

import pytest

from tandem_engine.runner.rank_watch import RankWatch
from tests.patience import HANG_S


@pytest.fixture
def ends() -> Iterator[list[int]]:
    """Descriptors that are readable when they are written to."""
    descriptors = [os.eventfd(0) for _ in range(3)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_the_end_of_any_process_is_told_once(ends: list[int]) -> None:
    lost = threading.Event()
    watch = RankWatch(ends, lambda: False, lost.set)

    os.eventfd_write(ends[1], 1)

    assert lost.wait(HANG_S)
    watch.close()


def test_ranks_that_exchange_nothing_any_more_are_lost_though_their_processes_live(
    ends: list[int],
) -> None:
    lost, has_failed = threading.Event(), threading.Event()
    watch = RankWatch(ends, has_failed.is_set, lost.set)

    assert not lost.is_set()
    has_failed.set()

    assert lost.wait(HANG_S)
    watch.close()


def test_a_watch_that_is_closed_tells_nothing(ends: list[int]) -> None:
    told: list[str] = []
    watch = RankWatch(ends, lambda: False, lambda: told.append("lost"))

    watch.close()
    watch.close()
    os.eventfd_write(ends[0], 1)

    assert told == []
