"""The same collectives on gloo, over loopback."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.gloo import GlooCommunicator
from tandem_engine.parallel.gloo_process_group import start_store
from tandem_engine.parallel.world import WorldShape
from tests.unit.engine.parallel.rank_processes import LOCALHOST, gloo_ranks_of, two_by_two
from tests.unit.engine.parallel.scenarios import nearly_equal, wrong_results

COUNTS = (1, 7, 1025)


def wrong_on_gloo(communicator: Communicator) -> list[str]:
    return wrong_results(communicator, nearly_equal, COUNTS)


@pytest.mark.parametrize("shape", [WorldShape(1), WorldShape(2), two_by_two()], ids=["1", "2", "4"])
@pytest.mark.parametrize("checks_calls", [False, True], ids=["unchecked", "checked"])
def test_all_operations_are_equal_to_torch(shape: WorldShape, checks_calls: bool) -> None:
    with gloo_ranks_of(shape, wrong_on_gloo, checks_calls=checks_calls) as ranks:
        assert [rank.result() for rank in ranks] == [[]] * shape.size


def in_flight(communicator: Communicator) -> list[float]:
    """Several calls before the first event is waited for."""
    tensors = [torch.full((50,), float(number)) for number in range(4)]
    events = [communicator.all_reduce(tensor) for tensor in tensors]
    for event in reversed(events):
        event.wait()
        event.wait()
    return [tensor.mean().item() for tensor in tensors]


def test_calls_may_be_in_flight() -> None:
    with gloo_ranks_of(WorldShape(2), in_flight) as ranks:
        assert [rank.result() for rank in ranks] == [[0, 2, 4, 6]] * 2


def reduce_for_ever(communicator: Communicator, *_: Any) -> None:
    while True:
        communicator.all_reduce(torch.ones(5)).wait()


def killed_in_the_middle(communicator: Communicator, *_: Any) -> None:
    communicator.all_reduce(torch.ones(5)).wait()
    os.kill(os.getpid(), signal.SIGKILL)


def stopped_in_the_middle(communicator: Communicator, *_: Any) -> None:
    communicator.all_reduce(torch.ones(5)).wait()
    os.kill(os.getpid(), signal.SIGSTOP)


def aborts(communicator: Communicator, *_: Any) -> None:
    communicator.all_reduce(torch.ones(5)).wait()
    communicator.abort("Rank 1 is out of memory.")
    communicator.all_reduce(torch.ones(5)).wait()


def test_a_killed_rank_is_named() -> None:
    with gloo_ranks_of(
        WorldShape(3), reduce_for_ever, others={1: killed_in_the_middle}, timeout_s=60
    ) as ranks:
        errors = [ranks[0].error(), ranks[2].error()]

    # One of the two tells the other, whichever saw it first.
    causes = {
        f"Rank 1 (127.0.0.1) has ended, hangs, or cannot be reached from rank {rank} (127.0.0.1): "
        "A rank closed its connection."
        for rank in (0, 2)
    }
    for error in errors:
        assert isinstance(error, CollectiveError)
        assert error.rank == 1
        assert error.cause in causes
        assert "the last call of rank 1 is not known" in str(error)


def test_a_stopped_rank_is_named() -> None:
    with gloo_ranks_of(
        WorldShape(2), reduce_for_ever, others={1: stopped_in_the_middle}, timeout_s=0.5
    ) as ranks:
        error = ranks[0].error()

    assert isinstance(error, CollectiveError)
    assert error.rank == 1
    assert "A rank was silent for longer than 0.5 s." in error.cause


def test_an_abort_reaches_the_others() -> None:
    with gloo_ranks_of(WorldShape(3), reduce_for_ever, others={1: aborts}, timeout_s=60) as ranks:
        errors = [rank.error() for rank in ranks]

    for error in errors:
        assert isinstance(error, CollectiveError)
        assert (error.rank, error.cause) == (1, "Rank 1 is out of memory.")


def raises_twice(communicator: Communicator, size: int) -> list[str]:
    communicator.all_reduce(torch.ones(5)).wait()
    found = []
    for _ in range(2):
        with pytest.raises(CollectiveError) as raised:
            communicator.all_reduce(torch.ones(size + communicator.rank)).wait()
        found.append(raised.value.cause)
    return found


def test_another_size_is_told_with_both_records() -> None:
    with gloo_ranks_of(WorldShape(2), raises_twice, 100_000, timeout_s=60) as ranks:
        causes = [cause for rank in ranks for cause in rank.result()]

    assert len(set(causes)) == 1
    assert "made call 2 of group 'world' as all_reduce, 40000" in causes[0]


def passes_other_sizes(communicator: Communicator, *_: Any) -> None:
    if communicator.rank == 0:
        communicator.send(torch.ones(5), 1).wait()
        communicator.receive(torch.ones(5), 1).wait()
    else:
        communicator.receive(torch.ones(6), 0).wait()


def test_another_size_of_a_send_is_told() -> None:
    with gloo_ranks_of(WorldShape(2), passes_other_sizes, timeout_s=5) as ranks:
        errors = [rank.error() for rank in ranks]

    assert all("call 1 of group '0→1' as send in world, 2" in str(error) for error in errors)


def open_sockets(communicator: Communicator) -> tuple[int, int]:
    communicator.all_reduce(torch.ones(5)).wait()
    before = count_sockets()
    communicator.close()
    return before, count_sockets()


def count_sockets() -> int:
    links = list(Path("/proc/self/fd").iterdir())
    return sum(one.is_symlink() and "socket" in str(one.readlink()) for one in links)


def test_closing_closes_connections() -> None:
    with gloo_ranks_of(WorldShape(2), open_sockets) as ranks:
        for before, after in [rank.result() for rank in ranks]:
            assert after < before


def test_a_rank_that_does_not_come() -> None:
    store = start_store(LOCALHOST)

    with pytest.raises(CollectiveError, match=r"The ranks have not all joined in 0\.2 s: "):
        GlooCommunicator(
            (LOCALHOST, store.port), WorldShape(2), 0, hostname=LOCALHOST, join_timeout_s=0.2
        )


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="Rank 2 is not of this world; ranks are 0 to 1"):
        GlooCommunicator((LOCALHOST, 1), WorldShape(2), 2, hostname=LOCALHOST)
    with pytest.raises(ConfigError, match="timeout_s and join_timeout_s are 0 and 120"):
        GlooCommunicator((LOCALHOST, 1), WorldShape(2), 0, hostname=LOCALHOST, timeout_s=0)
