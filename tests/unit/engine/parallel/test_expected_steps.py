"""What a step is expected to take bounds the time for which ranks compute, and wait for others."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.segment import SegmentAddress, SharedSegment
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.parallel.silence import Silence
from tandem_engine.parallel.world import WorldShape
from tandem_engine.runner.step_channel import StepReader, StepWriter, channel_bytes
from tests.patience import HANG_S
from tests.unit.engine.parallel.rank_processes import Scenario, ranks_of, run_ranks
from tests.unit.engine.parallel.silence import cause_of, loops, sums_for_ever

BOUND_S = 2.0
EXPECTED_S = 1.0
RING = 4096
LONG = 8 * RING
"""Bytes of a message that the ring does not hold."""
FOUR = WorldShape(4)


def compute(seconds: float) -> None:
    """Use a processor for so long."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def loops_in_a_step(communicator: Communicator, *_: Any) -> None:
    communicator.expect(EXPECTED_S)
    loops()


@pytest.mark.slow
def test_a_rank_that_computes_far_longer_than_a_step_takes_is_found() -> None:
    with ranks_of(
        FOUR, sums_for_ever, "world", others={3: loops_in_a_step}, timeout_s=BOUND_S
    ) as ranks:
        cause = cause_of(ranks, 3)

    assert cause == "has computed for 3 s without an end."


@contextmanager
def channel() -> Iterator[SegmentAddress]:
    """The memory of a channel with three readers, laid out."""
    size = channel_bytes(num_readers=3, ring_bytes=RING)
    with SharedSegment.create(size) as segment:
        yield segment.address


def writes_and_reads(
    communicator: Communicator, address: tuple[Any, ...], write: Scenario, before_read: Scenario
) -> int:
    """Have rank 0 write a message that the others read; return the bytes of it."""
    segment = SharedSegment.attach(SegmentAddress(*address))
    if communicator.rank == 0:
        writer = StepWriter(segment.buffer, ranks=(1, 2, 3), timeout_s=BOUND_S)
        writer.hear(communicator.silence_of)
        meet(communicator)  # it is laid out
        meet(communicator)  # they have opened it
        return int(write(writer))
    meet(communicator)
    reader = StepReader(
        segment.buffer,
        place=communicator.rank - 1,
        timeout_s=BOUND_S,
        silence=communicator.silence_of(0),
    )
    meet(communicator)
    if communicator.rank == 3:
        before_read()
    return len(reader.receive())


def meet(communicator: Communicator) -> None:
    communicator.all_reduce(torch.ones(1))


def publish(writer: StepWriter) -> int:
    writer.publish(bytes(LONG))
    return LONG


def publish_after_idling(writer: StepWriter) -> int:
    time.sleep(1.5 * BOUND_S)
    return publish(writer)


def hang_in_a_turn(writer: StepWriter) -> int:
    """Hang beside a thread that answers callers, and so computes."""
    threading.Thread(target=loops, daemon=True).start()
    with writer.turn():
        threading.Event().wait()
    return 0


def do_nothing() -> None:
    pass


def compute_for_long() -> None:
    compute(1.5 * BOUND_S)


def hang() -> None:
    threading.Event().wait()


@pytest.mark.parametrize(
    ("write", "before_read"),
    [
        pytest.param(publish, compute_for_long, id="a reader computes", marks=pytest.mark.slow),
        pytest.param(publish_after_idling, do_nothing, id="rank 0 is idle"),
    ],
)
def test_a_message_larger_than_the_ring_arrives(write: Scenario, before_read: Scenario) -> None:
    with channel() as address:
        read = run_ranks(
            FOUR, writes_and_reads, tuple(address), write, before_read, timeout_s=HANG_S
        )

    assert read == [LONG] * 4


class LeavesFirst:
    """Rank 0 as another rank hears it: it has done its last work, and left, just before."""

    def __init__(self, silence: Silence, leave: Callable[[], None]) -> None:
        self._silence = silence
        self._leave = leave

    def listen(self, seconds: float, *, begins: bool, has_come: Callable[[], bool]) -> None:
        self._leave()
        self._silence.listen(seconds, begins=begins, has_come=has_come)

    def end(self) -> None:
        self._silence.end()


def test_a_message_that_was_written_before_its_rank_left_arrives() -> None:
    shape = WorldShape(2)
    with make_segment(shape) as segment, channel() as address, ThreadPoolExecutor() as threads:
        join = partial(SharedMemoryCommunicator, segment.address, shape, timeout_s=HANG_S)
        joined = [threads.submit(join, rank) for rank in range(2)]
        rank_0, rank_1 = (future.result(HANG_S) for future in joined)
        attached = SharedSegment.attach(address)
        memory = attached.buffer
        writer = StepWriter(memory, ranks=(1,), timeout_s=HANG_S)

        def leave() -> None:
            writer.publish(b"last")
            rank_0.close()

        silence = LeavesFirst(rank_1.silence_of(0), leave)
        reader = StepReader(memory, place=0, timeout_s=HANG_S, silence=silence)
        with writer.turn(), rank_1:
            assert reader.receive() == b"last"
            assert rank_1.failure() is None


def test_a_rank_that_hangs_and_does_not_read_is_named_by_all() -> None:
    with (
        channel() as address,
        ranks_of(FOUR, writes_and_reads, tuple(address), publish, hang, timeout_s=BOUND_S) as ranks,
    ):
        cause = cause_of(ranks, 3)

    # Perhaps also "and is stopped", on a machine that stops it.
    assert cause.startswith("has been silent for 2 s")


def test_a_rank_0_that_hangs_in_its_step_loop_is_named_though_its_process_computes() -> None:
    with (
        channel() as address,
        ranks_of(
            FOUR,
            expects_then_writes_and_reads,
            tuple(address),
            hang_in_a_turn,
            do_nothing,
            timeout_s=BOUND_S,
        ) as ranks,
    ):
        cause = cause_of(ranks, 0)

    assert cause == "has computed for 3 s without an end."


def expects_then_writes_and_reads(communicator: Communicator, *args: Any) -> int:
    communicator.expect(EXPECTED_S)
    return writes_and_reads(communicator, *args)
