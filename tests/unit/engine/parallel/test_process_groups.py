"""The communicator over process groups: ranks are threads here, and gloo carries out the calls."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from tandem_engine.parallel.call_watch import POLL_S
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.hccl import HcclAddress, HcclWorld
from tandem_engine.parallel.process_groups import ProcessGroupCommunicator
from tandem_engine.parallel.world import Group, WorldShape
from tests.e2e.harness import wait_for
from tests.npu.pretended_hccl import hccl as gloo
from tests.patience import HANG_S
from tests.unit.engine.parallel.rank_processes import two_by_two
from tests.unit.engine.parallel.scenarios import in_place_gather, nearly_equal, wrong_results

Work = Callable[[ProcessGroupCommunicator], Any]
TWO = WorldShape(2, (Group("tp", (1, 0)),))


class Meeting:
    """A point that all ranks reach before one goes on; an error of one ends the wait of all."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier = threading.Barrier(num_ranks)

    def wait(self) -> None:
        self._barrier.wait(HANG_S)

    @contextmanager
    def after(self) -> Iterator[None]:
        """Wait at the end of the block: who leaves a world gives up what others still read."""
        try:
            yield
        except BaseException:
            self._barrier.abort()
            raise
        self.wait()


def run_ranks(shape: WorldShape, *works: Work, timeout_s: float = HANG_S) -> list[Any]:
    """Results of the ranks; all do the first work, unless there is one for each."""
    end = Meeting(shape.size)
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined,no-untyped-call,unused-ignore]

    def be(rank: int) -> Any:
        work = works[rank] if len(works) > 1 else works[0]
        with (
            closing(
                ProcessGroupCommunicator(gloo(), store, shape, rank, timeout_s=timeout_s)
            ) as communicator,
            end.after(),
        ):
            return work(communicator)

    with ThreadPoolExecutor(shape.size) as ranks:
        return list(ranks.map(be, range(shape.size)))


@pytest.mark.parametrize(
    "shape",
    [WorldShape(1), TWO, WorldShape(3, (Group("tp", (2, 0, 1)),)), two_by_two()],
    ids=["one rank", "two", "three, in another order", "four in groups"],
)
def test_all_operations_are_equal_to_torch(shape: WorldShape) -> None:
    def work(communicator: Communicator) -> list[str]:
        return wrong_results(communicator, nearly_equal, (0, 7, 1025))

    assert run_ranks(shape, work) == [[]] * shape.size


def test_all_ranks_get_the_same_bits() -> None:
    def work(communicator: Communicator) -> bytes:
        tensor = torch.randn(30_000, generator=torch.manual_seed(communicator.rank))
        communicator.all_reduce(tensor)
        return tensor.numpy().tobytes()

    assert len(set(run_ranks(WorldShape(4), work))) == 1


def test_a_gather_may_be_in_place() -> None:
    assert all(run_ranks(WorldShape(3), in_place_gather))


def test_a_sender_goes_on_before_its_receiver_reads_and_may_overwrite_what_it_sent() -> None:
    sent, received = threading.Event(), 4

    def send(communicator: Communicator) -> None:
        tensor = torch.empty(5)
        for number in range(received):
            communicator.send(tensor.fill_(number), 1)
        sent.set()
        communicator.send(tensor.fill_(9), 1)  # waits until the first has arrived
        communicator.broadcast(tensor, 1)  # who leaves gives up what is on its way

    def receive(communicator: Communicator) -> list[float]:
        assert sent.wait(HANG_S)
        tensor, found = torch.empty(5), []
        for _ in range(received + 1):
            communicator.receive(tensor, 0)
            found.append(tensor[4].item())
        communicator.broadcast(tensor, 1)
        return found

    assert run_ranks(WorldShape(2), send, receive)[1] == [0, 1, 2, 3, 9]


def test_a_receiver_that_is_late_delays_no_send_in_another_group() -> None:
    shape = WorldShape(3, (Group("near", (0, 1)), Group("far", (0, 2))))
    has_sent = threading.Event()

    def send(communicator: Communicator) -> None:
        for number in range(4):
            communicator.send(torch.full((5,), float(number)), 1, "near")
        for number in range(6):  # more than may be on their way, of which rank 2 reads each
            communicator.send(torch.full((5,), float(number)), 1, "far")
        has_sent.set()
        communicator.all_reduce(torch.ones(1))

    def read_late(communicator: Communicator) -> list[float]:
        assert has_sent.wait(HANG_S)
        return read(communicator, 4, "near")

    def read_at_once(communicator: Communicator) -> list[float]:
        return read(communicator, 6, "far")

    def read(communicator: Communicator, count: int, group: str) -> list[float]:
        found = []
        for _ in range(count):
            tensor = torch.empty(5)
            communicator.receive(tensor, 0, group)
            found.append(tensor[0].item())
        communicator.all_reduce(torch.ones(1))
        return found

    assert run_ranks(shape, send, read_late, read_at_once)[1:] == [[0, 1, 2, 3], [*range(6)]]


def wrong_calls(communicator: ProcessGroupCommunicator) -> Iterator[Callable[[], None]]:
    tensor = torch.ones(4)
    yield lambda: communicator.all_reduce(tensor, "pp")
    yield lambda: communicator.all_reduce(tensor.half())
    yield lambda: communicator.all_reduce(torch.ones(4, 2).T)
    yield lambda: communicator.all_reduce(tensor.to("meta"))
    yield lambda: communicator.all_gather(torch.ones(7), tensor)
    yield lambda: communicator.reduce_scatter(torch.ones(3), tensor)
    yield lambda: communicator.broadcast(tensor, 2)
    yield lambda: communicator.send(tensor, communicator.rank)
    yield lambda: communicator.receive(tensor, 5)


def test_a_wrong_argument_is_refused_before_another_rank_notices() -> None:
    def work(communicator: ProcessGroupCommunicator) -> list[str]:
        for call in wrong_calls(communicator):
            with pytest.raises(ValueError, match=r"\w"):
                call()
        return wrong_results(communicator, nearly_equal, (3,))

    assert run_ranks(TWO, work) == [[], []]


def test_a_rank_that_leaves_fails_the_others_and_all_their_later_calls() -> None:
    have_summed = Meeting(3)

    def leave(communicator: ProcessGroupCommunicator) -> None:
        communicator.all_reduce(torch.ones(2))
        have_summed.wait()
        communicator.close()
        communicator.close()

    def stay(communicator: ProcessGroupCommunicator) -> str:
        communicator.all_reduce(torch.ones(2))
        have_summed.wait()
        with pytest.raises(CollectiveError) as first:
            communicator.all_reduce(torch.ones(2))
        with pytest.raises(CollectiveError, match=r"^A collective has failed: "):
            communicator.broadcast(torch.ones(1), 0)
        with pytest.raises(CollectiveError, match=r"^A collective has failed: "):
            communicator.check()
        assert communicator.failure() == first.value.cause
        return str(first.value)

    said = run_ranks(WorldShape(3), leave, stay, stay)[1:]

    for text in said:
        assert text.startswith("A collective has failed: ")
        assert text.endswith(" call 2 of group 'world' (all_reduce, 8 B of float32).")


def test_a_rank_that_gives_up_says_why_and_the_others_fail() -> None:
    have_joined = Meeting(2)

    def give_up(communicator: ProcessGroupCommunicator) -> str:
        have_joined.wait()
        communicator.abort("Its card is lost.")
        with pytest.raises(CollectiveError, match=r"^Its card is lost\."):
            communicator.send(torch.ones(1), 1)
        return communicator.failure() or ""

    def wait(communicator: ProcessGroupCommunicator) -> str:
        have_joined.wait()
        with pytest.raises(CollectiveError) as raised:
            communicator.receive(torch.ones(1), 0)
        return raised.value.cause

    first, second = run_ranks(WorldShape(2), give_up, wait)

    assert first == "Its card is lost."
    assert second.startswith("A collective has failed: ")


def test_a_rank_that_does_not_join_is_missed() -> None:
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined,no-untyped-call,unused-ignore]

    with pytest.raises(CollectiveError, match=r"^A rank has not joined: "):
        ProcessGroupCommunicator(
            gloo(), store, WorldShape(2), 0, timeout_s=HANG_S, join_timeout_s=0.5
        )


def test_a_rank_that_hangs_ends_the_calls_of_those_that_wait_for_it() -> None:
    """It is found once a step has been expected; gloo's call itself ends with the connection."""
    waiting: list[ProcessGroupCommunicator] = []

    def wait(communicator: ProcessGroupCommunicator) -> str:
        communicator.all_reduce(torch.ones(2))
        communicator.expect(0.1)
        waiting.append(communicator)
        with pytest.raises(CollectiveError) as raised:
            communicator.all_reduce(torch.ones(2))
        return raised.value.cause

    def hang(communicator: ProcessGroupCommunicator) -> None:
        communicator.all_reduce(torch.ones(2))
        wait_for(lambda: bool(waiting) and waiting[0].failure() is not None, "it is found")
        communicator.close()

    said, _ = run_ranks(WorldShape(2), wait, hang, timeout_s=2.0)

    assert re.match(
        r"No collective of group world has ended for \d+ s, where a step may take 0 s: "
        r"a rank hangs, or its device\.",
        said,
    )


def test_ranks_that_compute_for_longer_than_a_silence_are_none_that_hang() -> None:
    """As long as calls end, and none is under way, nothing is missed."""

    def work(communicator: ProcessGroupCommunicator) -> list[str]:
        communicator.expect(0.1)
        wrong = wrong_results(communicator, nearly_equal, (3,))
        assert not threading.Event().wait(4 * POLL_S)
        return wrong + wrong_results(communicator, nearly_equal, (3,))

    assert run_ranks(TWO, work, timeout_s=HANG_S) == [[], []]


def test_ranks_of_a_host_find_each_other_in_a_folder_that_goes_with_the_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem_engine.parallel.hccl.hccl", gloo)
    shape, end = WorldShape(2), Meeting(2)

    with closing(HcclWorld(shape)) as world:
        address: HcclAddress = world.address

        def be(rank: int) -> list[str]:
            with (
                closing(address.join(shape, rank, timeout_s=HANG_S)) as communicator,
                end.after(),
            ):
                return wrong_results(communicator, nearly_equal, (3,))

        with ThreadPoolExecutor(2) as ranks:
            assert list(ranks.map(be, range(2))) == [[], []]
    assert not Path(address.store).parent.exists()
