"""Scenarios of ranks of which one is silent, and what the others say of it."""

import threading
import time
from typing import Any

import torch

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tests.unit.engine.parallel.rank_processes import Rank


def passes_on(communicator: Communicator, *_: Any) -> None:
    """Be a stage: take what the next rank sends, for ever."""
    rank, last = communicator.rank, communicator.shape.size - 1
    while True:
        if rank < last:
            communicator.receive(torch.empty(5), rank + 1)
        if rank:
            communicator.send(torch.ones(5), rank - 1)


def sums_for_ever(communicator: Communicator, *groups: str) -> None:
    """Sum in one group after the other: who waits for the silent one is waited for in turn."""
    while True:
        for group in groups:
            communicator.all_reduce(torch.ones(5), group)


def sleeps(communicator: Communicator, *_: Any) -> None:
    assert communicator.rank >= 0
    threading.Event().wait()


def sleeps_with_a_busy_thread(communicator: Communicator, *_: Any) -> None:
    """Hang, beside a thread that keeps itself alive with 3 ms of CPU each 0.8 s."""

    def keep_alive() -> None:
        while True:
            end = time.thread_time() + 0.003
            while time.thread_time() < end:
                pass
            time.sleep(0.8)

    threading.Thread(target=keep_alive, daemon=True).start()
    sleeps(communicator)


def loops(*_: Any) -> None:
    while True:
        pass


def cause_of(ranks: list[Rank], culprit: int) -> str:
    """The cause that all ranks but one tell, which names that one; from its pid on."""
    errors = [rank.error() for at, rank in enumerate(ranks) if at != culprit]
    for error in errors:
        assert isinstance(error, CollectiveError), error
        assert error.rank == culprit, error.cause
    (cause,) = {error.cause for error in errors if isinstance(error, CollectiveError)}
    begin = f"Rank {culprit} (process {ranks[culprit].pid}) "
    assert cause.startswith(begin)
    return cause.removeprefix(begin)
