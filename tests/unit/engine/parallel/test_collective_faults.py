"""Ranks that end, stop, leave or call something else: the others raise, and nothing is left."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.parallel.collective_record import RecordedCall
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError, SegmentError
from tandem_engine.parallel.segment import SegmentAddress, SharedSegment
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.parallel.world import WORLD, Group, WorldShape
from tests.patience import HANG_S
from tests.unit.engine.native import native_kernels
from tests.unit.engine.parallel.rank_processes import Rank, ranks_of, run_ranks, two_by_two

LARGE = 1 << 20
"""Elements of a tensor that takes hundreds of rounds."""


def reduce_for_ever(communicator: Communicator, count: int = LARGE) -> None:
    tensor = torch.zeros(count)
    while True:
        communicator.all_reduce(tensor)


def wait_for_peers(communicator: Communicator, *_: Any) -> None:
    communicator.all_reduce(torch.ones(5))


def sleep_for_ever(communicator: Communicator, *_: Any) -> None:
    assert communicator.rank >= 0
    threading.Event().wait()


def receive_from_one(communicator: Communicator, *_: Any) -> None:
    communicator.receive(torch.ones(5), 1)


def send_to_one(communicator: Communicator, *_: Any) -> None:
    while True:
        communicator.send(torch.ones(500), 1)


def errors_of(ranks: list[Rank]) -> list[CollectiveError]:
    found = [rank.error() for rank in ranks]
    assert all(isinstance(error, CollectiveError) for error in found), found
    return [error for error in found if isinstance(error, CollectiveError)]


@pytest.mark.parametrize(
    "waiting", [wait_for_peers, receive_from_one, send_to_one, reduce_for_ever]
)
def test_a_killed_rank_ends_the_others_calls(waiting: Callable[..., None]) -> None:
    """Long before the bound, which is for silence."""
    shape = WorldShape(3)
    with ranks_of(shape, waiting, others={1: sleep_for_ever}, timeout_s=3600) as ranks:
        killed = ranks.pop(1)
        killed.wait_until_joined()
        os.kill(killed.pid, signal.SIGKILL)
        errors = errors_of(ranks)

    for error in errors:
        assert error.rank == 1
        assert error.cause == f"Rank 1 (process {killed.pid}) has ended."
        assert str(error).startswith(error.cause)


@pytest.mark.parametrize("count", [5, LARGE])
def test_a_rank_killed_between_calls_and_in_them(count: int) -> None:
    with ranks_of(two_by_two(), reduce_for_ever, count, timeout_s=3600) as ranks:
        ranks[2].wait_until_joined()
        os.kill(ranks[2].pid, signal.SIGKILL)
        errors = errors_of([*ranks[:2], ranks[3]])

    assert {error.rank for error in errors} == {2}
    assert all(
        error.peer.calls[-1].operation == "all_reduce" for error in errors if error.peer.calls
    )


def test_a_stopped_rank_is_silent_and_is_told_when_it_goes_on() -> None:
    with ranks_of(WorldShape(2), reduce_for_ever, 5, timeout_s=0.5) as ranks:
        ranks[1].wait_until_joined()
        os.kill(ranks[1].pid, signal.SIGSTOP)
        error = ranks[0].error()
        os.kill(ranks[1].pid, signal.SIGCONT)
        late = ranks[1].error()

    assert isinstance(error, CollectiveError)
    assert isinstance(late, CollectiveError)
    assert error.rank == late.rank == 1
    assert error.cause == late.cause
    assert error.cause == (
        f"Rank 1 (process {ranks_pid(error)}) has been silent for 0.5 s, and is stopped."
    )


def compute_then_send(communicator: Communicator, seconds: float) -> None:
    if communicator.rank == 0:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
    if communicator.rank:
        communicator.receive(torch.empty(5), communicator.rank - 1)
    if communicator.rank < 2:
        communicator.send(torch.ones(5), communicator.rank + 1)


@pytest.mark.slow
def test_a_rank_that_computes_is_not_silent_nor_are_those_that_wait_for_it() -> None:
    """As pipeline stages do while the first one computes a long prompt."""
    # On a busy machine it may get no processor for half a second.
    run_ranks(WorldShape(3), compute_then_send, 4.0, timeout_s=2)


def ranks_pid(error: CollectiveError) -> str:
    return error.cause.partition("(process ")[2].partition(")")[0]


def raises_in_the_middle(communicator: Communicator, *_: Any) -> None:
    communicator.all_reduce(torch.ones(5))
    communicator.abort("Rank 1 is out of memory.")
    raise MemoryError


def test_an_abort_reaches_ranks_that_wait() -> None:
    with ranks_of(
        WorldShape(3), reduce_for_ever, 5, others={1: raises_in_the_middle}, timeout_s=3600
    ) as ranks:
        assert isinstance(ranks.pop(1).error(), MemoryError)
        errors = errors_of(ranks)

    assert {error.cause for error in errors} == {"Rank 1 is out of memory."}
    assert {error.rank for error in errors} == {1}


def abort_from_a_thread(communicator: Communicator, *_: Any) -> None:
    threading.Timer(0.2, communicator.abort, ["Rank 0 was asked to end."]).start()
    communicator.all_reduce(torch.ones(5))


def test_another_thread_can_end_a_call() -> None:
    with ranks_of(
        WorldShape(2), abort_from_a_thread, others={1: sleep_for_ever}, timeout_s=3600
    ) as ranks:
        error = ranks[0].error()

    assert str(error).startswith("Rank 0 was asked to end.")


def closes(communicator: Communicator, *_: Any) -> None:
    communicator.all_reduce(torch.ones(5))
    communicator.close()


def test_a_rank_that_closes_too_early() -> None:
    """What it has sent before can still be received."""
    with ranks_of(WorldShape(3), reduce_for_ever, 5, others={1: closes}, timeout_s=3600) as ranks:
        assert ranks.pop(1).result() is None
        errors = errors_of(ranks)

    for error in errors:
        assert error.cause.startswith("Rank 1 (process ")
        assert error.cause.endswith(" has closed its communicator.")
        assert error.peer.calls == (RecordedCall(1, WORLD, "all_reduce", 20, "float32"),)


CALLS: dict[str, Callable[[Communicator], object]] = {
    "all_reduce": lambda one: one.all_reduce(torch.ones(64)),
    "another size": lambda one: one.all_reduce(torch.ones(63)),
    "another dtype": lambda one: one.all_reduce(torch.ones(128).bfloat16()),
    "large": lambda one: one.all_reduce(torch.ones(LARGE)),
    "reduce_scatter": lambda one: one.reduce_scatter(torch.ones(32), torch.ones(64)),
    "all_gather": lambda one: one.all_gather(torch.ones(64), torch.ones(32)),
    "broadcast": lambda one: one.broadcast(torch.ones(64), 0),
    "broadcast from another": lambda one: one.broadcast(torch.ones(64), 1),
}


def call_two(communicator: Communicator, names: dict[int, str]) -> None:
    """A first call that is alike, one that is not, and then any number that are."""
    communicator.all_reduce(torch.ones(2))
    CALLS[names[communicator.rank]](communicator)
    reduce_for_ever(communicator, 3)


PAIRS = [
    ("all_reduce", "another size"),
    ("all_reduce", "another dtype"),
    ("all_reduce", "large"),
    ("all_reduce", "reduce_scatter"),
    ("all_reduce", "all_gather"),
    ("all_reduce", "broadcast"),
    ("reduce_scatter", "all_gather"),
    ("broadcast", "all_gather"),
    ("broadcast", "broadcast from another"),
    ("broadcast from another", "large"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[" | ".join(pair) for pair in PAIRS])
def test_another_call_at_the_same_number_is_found_by_both(first: str, second: str) -> None:
    with ranks_of(WorldShape(2), call_two, {0: first, 1: second}, timeout_s=3600) as ranks:
        errors = errors_of(ranks)

    assert errors[0].cause == errors[1].cause
    assert " made call 2 of group 'world' as " in errors[0].cause
    for error in errors:
        mine, peer = error.own.calls[1], error.peer.calls[1]
        assert error.own.calls[0] == error.peer.calls[0]
        assert (mine != peer) == (error.own.rank != error.peer.rank)


def sends_in(communicator: Communicator, groups: dict[int, str]) -> None:
    if communicator.rank == 0:
        communicator.send(torch.ones(4), 1, groups[0])
        communicator.receive(torch.ones(4), 1, groups[0])
    else:
        communicator.receive(torch.ones(4), 0, groups[1])


def test_a_pair_must_agree_on_the_group() -> None:
    shape = WorldShape(2, (Group("tp", (0, 1)), Group("pp", (0, 1))))
    with ranks_of(shape, sends_in, {0: "tp", 1: "pp"}, timeout_s=3600) as ranks:
        errors = errors_of(ranks)

    assert "call 1 of group '0→1' as send in " in errors[0].cause


def reduces_in(communicator: Communicator, groups: dict[int, str]) -> None:
    communicator.all_reduce(torch.ones(4), groups[communicator.rank])


def test_waiting_in_different_groups_ends_with_both_records() -> None:
    shape = WorldShape(2, (Group("tp", (0, 1)),))
    with ranks_of(shape, reduces_in, {0: WORLD, 1: "tp"}, timeout_s=0.5) as ranks:
        errors = errors_of(ranks)

    for error in errors:
        assert "has been silent for 0.5 s" in error.cause
        if error.own.rank != error.peer.rank:
            assert "call 1 of group 'world' (all_reduce, 16 B of float32) last" in str(error)
            assert "call 1 of group 'tp' (all_reduce, 16 B of float32) last" in str(error)


def fails_then_calls_all(communicator: SharedMemoryCommunicator) -> list[str]:
    """After an error every call raises at once, also those that need no peer."""
    found = []
    tensor = torch.ones(4)
    calls: list[Callable[[], object]] = [
        lambda: communicator.all_reduce(tensor),
        lambda: communicator.all_gather(torch.ones(8), tensor),
        lambda: communicator.reduce_scatter(torch.ones(2), tensor),
        lambda: communicator.broadcast(tensor, communicator.rank),
        lambda: communicator.send(tensor, 1 - communicator.rank),
        lambda: communicator.receive(tensor, 1 - communicator.rank),
    ]
    communicator.all_reduce(tensor)
    communicator.abort("Rank 1 has a hiccup.")
    for call in calls:
        with pytest.raises(CollectiveError) as raised:
            call()
        found.append(raised.value.cause)
    communicator.abort("Too late.")
    return found


def test_after_an_error_every_call_raises() -> None:
    for causes in run_ranks(WorldShape(2), fails_then_calls_all, timeout_s=3600):
        assert causes == ["Rank 1 has a hiccup."] * 6


def test_an_error_travels_with_both_records() -> None:
    with ranks_of(WorldShape(2), call_two, {0: "all_reduce", 1: "large"}) as ranks:
        error = errors_of(ranks)[0]
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own

    assert (str(again), again.rank, again.own, again.peer) == (
        str(error),
        error.rank,
        error.own,
        error.peer,
    )


def test_ranks_must_declare_one_world() -> None:
    with ranks_of(
        WorldShape(2, (Group("tp", (0, 1)),)),
        wait_for_peers,
        shapes={1: WorldShape(2, (Group("tp", (1, 0)),))},
    ) as ranks:
        errors = errors_of(ranks)

    assert "declares another world than rank" in errors[0].cause
    assert errors[0].cause.endswith("start all ranks of a replica with the same plan.")


def test_a_rank_that_does_not_come() -> None:
    native_kernels()
    shape = WorldShape(2)
    with make_segment(shape) as segment:
        with pytest.raises(CollectiveError, match=r"Rank 1 has not joined for 0\.05 s\.") as raised:
            SharedMemoryCommunicator(
                segment.address, shape, 0, join_timeout_s=0.05, timeout_s=HANG_S
            )
        assert raised.value.rank == 1
        # The one that comes later is told at once.
        with pytest.raises(CollectiveError, match="Rank 1 has not joined for"):
            SharedMemoryCommunicator(segment.address, shape, 1, timeout_s=HANG_S)


def test_a_rank_joins_once() -> None:
    native_kernels()
    shape = WorldShape(1)
    with make_segment(shape) as segment:
        SharedMemoryCommunicator(segment.address, shape, 0, timeout_s=HANG_S).close()
        with pytest.raises(CollectiveError, match="Rank 0 has joined before"):
            SharedMemoryCommunicator(segment.address, shape, 0, timeout_s=HANG_S)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s is 0; it must be above 0"),
        ({"join_timeout_s": -1}, "join_timeout_s is -1; it must be above 0"),
        ({"slot_bytes": 5000}, "slot_bytes is 5000; it can be a power of 2 from 4096 to 16777216"),
    ],
)
def test_wrong_settings(options: dict[str, Any], message: str) -> None:
    native_kernels()
    with make_segment(WorldShape(1)) as segment, pytest.raises(ConfigError, match=message):
        SharedMemoryCommunicator(
            segment.address, WorldShape(1), 0, **{"timeout_s": HANG_S, **options}
        )


def test_a_segment_of_another_world() -> None:
    native_kernels()
    with (
        make_segment(WorldShape(1)) as segment,
        pytest.raises(SegmentError, match="make it with the same shape and slot_bytes"),
    ):
        SharedMemoryCommunicator(segment.address, WorldShape(2), 0, timeout_s=HANG_S)


def open_files() -> list[str]:
    found = []
    for name in Path("/proc/self/fd").iterdir():
        # That of the folder itself is gone by now.
        with suppress(FileNotFoundError):
            found.append(str(name.readlink()))
    return found


def segments_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("tandem-segment")


def test_closing_leaves_nothing() -> None:
    native_kernels()
    for _ in range(3):
        with make_segment(WorldShape(1)) as segment:
            communicator = SharedMemoryCommunicator(
                segment.address, WorldShape(1), 0, timeout_s=HANG_S
            )
            communicator.all_reduce(torch.ones(10))
            assert segments_mapped() == 2
            communicator.close()

    assert segments_mapped() == 0
    assert not [name for name in open_files() if "tandem-segment" in name]


def test_a_failed_start_leaves_nothing() -> None:
    native_kernels()
    with make_segment(WorldShape(2)) as segment, pytest.raises(CollectiveError):
        SharedMemoryCommunicator(
            segment.address, WorldShape(2), 0, join_timeout_s=0.01, timeout_s=HANG_S
        )

    assert segments_mapped() == 0


CREATOR = """
import json, sys
from tests.patience import HANG_S
from tandem_engine.parallel.segment import SharedSegment
segment = SharedSegment.create(1 << 20)
segment.buffer[:5] = b"hello"
print(json.dumps(segment.address), flush=True)
sys.stdin.read()
"""


def test_memory_ends_with_the_last_process_that_has_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CREATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as creator:
        assert creator.stdout is not None
        address = SegmentAddress(*json.loads(creator.stdout.readline()))
        segment = SharedSegment.attach(address)
        creator.kill()
        creator.wait()

        assert bytes(segment.buffer[:5]) == b"hello"
        with pytest.raises(SegmentError, match="must keep it open until all ranks have joined"):
            SharedSegment.attach(address)
        segment.close()
    assert segments_mapped() == 0


def test_a_segment_is_known_by_its_nonce() -> None:
    with SharedSegment.create(100) as one, SharedSegment.create(100) as other:
        with pytest.raises(SegmentError, match="there is another segment"):
            SharedSegment.attach(one.address._replace(nonce=other.address.nonce))
        with pytest.raises(SegmentError, match="there is another file"):
            SharedSegment.attach(one.address._replace(size=200))
        reader, writer = os.pipe()
        with pytest.raises(SegmentError, match="there is no file in memory"):
            SharedSegment.attach(one.address._replace(fd=reader))
        os.close(reader)
        os.close(writer)


def test_a_segment_cannot_be_shortened() -> None:
    with SharedSegment.create(100) as segment, pytest.raises(PermissionError):
        os.ftruncate(segment.address.fd, 0)


def test_a_segment_is_zeros_and_begins_a_page() -> None:
    with SharedSegment.create(10_000) as segment, SharedSegment.attach(segment.address) as other:
        assert not any(segment.buffer)
        assert segment.pointer % 4096 == 0
        assert segment.pointer != other.pointer
        segment.buffer[9_999] = 7
        assert other.buffer[9_999] == 7


def test_a_segment_of_nothing() -> None:
    with pytest.raises(SegmentError, match="A segment of 0 B cannot be"):
        SharedSegment.create(0)
