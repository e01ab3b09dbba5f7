"""A rank of a replica is killed, stopped, slow, or fails: the replica ends, and leaves nothing.

Its processes are real, and a fault is in the middle of a step: behind a sum of all ranks.
"""

import asyncio
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tandem_engine import build
from tandem_engine.api.errors import CheckpointError, EngineStopped, ReplicaLost
from tandem_engine.runner import rank_process
from tandem_engine.runner.rank_launcher import RankStartError, RankTask
from tests.integration.faulty_ranks import (
    Fault,
    FaultyLauncher,
    Replica,
    answer,
    be_patient,
    behind_a_sum,
    compute_on,
    config,
    fail,
    lost_by,
    lost_in_a_step,
    replica,
    run_out_of_memory,
    shorten_bounds,
    wait_to_go_on,
)
from tests.integration.rank_processes import (
    children,
    has_ended,
    holders_of,
    in_dev_shm,
    segments_of,
)
from tests.patience import HANG_S


@dataclass(frozen=True, slots=True)
class UnstartableTask(RankTask):
    """A rank with a fault while it loads its weights."""

    fault: Callable[..., Any]

    def run(self, connection: Connection) -> None:
        rank_process.load_part = self.fault
        RankTask.run(self, connection)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def _short_silence(monkeypatch: pytest.MonkeyPatch, _patience: None) -> None:
    shorten_bounds(monkeypatch)


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    """What one rank says."""

    async def ask() -> tuple[int, ...]:
        engine = build.build_engine(config(tp=1))
        try:
            return await answer(engine)
        finally:
            await engine.stop()

    return asyncio.run(ask())


def test_a_rank_killed_while_idle_ends_its_replica_and_no_other(
    expected: tuple[int, ...],
) -> None:
    async def scene(lost: Replica, other: Replica) -> str:
        assert await answer(lost.engine) == expected
        os.kill(lost.pid, signal.SIGKILL)
        cause = await lost.end()
        other.engine.check_health()
        assert await answer(other.engine) == expected
        assert not has_ended(other.pid)
        return cause

    with replica() as lost, replica() as other:
        cause = asyncio.run(scene(lost, other))

    assert cause.startswith("Rank 1 was ended by SIGKILL.")


@pytest.mark.slow
def test_a_rank_killed_in_a_step_ends_the_replica() -> None:
    with replica(wait_to_go_on) as made:
        cause = asyncio.run(lost_by(made, signal.SIGKILL))

    assert "Rank 1" in cause
    assert "SIGKILL" in cause


@pytest.mark.slow
@pytest.mark.usefixtures("_short_silence")
def test_a_rank_stopped_in_a_step_ends_the_replica_and_is_gone() -> None:
    with replica(wait_to_go_on) as made:
        cause = asyncio.run(lost_by(made, signal.SIGSTOP))

    assert f"Rank 1 (process {made.pid}) has been silent for 2 s, and is stopped." in cause


@pytest.mark.slow
@pytest.mark.usefixtures("_short_silence")
@pytest.mark.parametrize("fault", [wait_to_go_on, compute_on], ids=["waits", "computes"])
def test_a_slow_rank_is_waited_for(fault: Fault, expected: tuple[int, ...]) -> None:
    async def scene(made: Replica) -> tuple[int, ...]:
        made.gate.send("begin")
        asking = asyncio.create_task(answer(made.engine))
        assert await made.message() == "in a step"
        assert not asking.done()
        made.gate.send("go on")
        return await asking

    with replica(fault) as made:
        assert asyncio.run(scene(made)) == expected
        made.engine.check_health()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(
            run_out_of_memory,
            "MemoryError: no 7 GiB for the sums",
            id="out of memory",
            marks=pytest.mark.slow,
        ),
        pytest.param(fail, "RuntimeError: there is no such kernel", id="raises"),
    ],
)
def test_a_rank_that_fails_in_a_step_ends_the_replica(fault: Fault, error: str) -> None:
    with replica(fault) as made:
        cause = asyncio.run(lost_in_a_step(made))

    assert cause.startswith(f"Rank 1 cannot go on: {error}; see its log.")


@pytest.mark.slow
def test_rank_0_that_fails_in_a_step_ends_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    with replica() as made:
        gate, begin = multiprocessing.Pipe()
        behind_a_sum(fail, gate, monkeypatch.setattr)
        begin.send("begin")

        cause = asyncio.run(lost_in_a_step(made))

        gate.close()
        begin.close()
    assert cause == "Rank 0 cannot go on: RuntimeError: there is no such kernel."


@pytest.mark.slow
@pytest.mark.usefixtures("_short_silence")
def test_rank_0_that_hangs_in_its_step_loop_is_lost_though_its_process_computes() -> None:
    goes_on = threading.Event()

    def hang(*_: Any) -> None:
        goes_on.wait()
        raise RuntimeError("it went on")

    async def scene(made: Replica) -> str:
        # By as many steps as it takes to learn what one takes.
        await answer(made.engine)
        made.engine._loop._engine._scheduler.schedule = hang  # type: ignore[method-assign,assignment]
        asking = asyncio.create_task(answer(made.engine))
        async with asyncio.timeout(HANG_S):
            cause = await health_lost(made)
        goes_on.set()
        with pytest.raises(EngineStopped):
            await asking
        return cause

    with replica() as made:
        busy = threading.Thread(target=answer_callers, args=(goes_on,))
        busy.start()
        try:
            cause = asyncio.run(scene(made))
        finally:
            goes_on.set()
            busy.join()

    assert cause.startswith(f"Rank 0 (process {os.getpid()}) has ")


def answer_callers(until: threading.Event) -> None:
    """Use the processor as the threads of an HTTP server do."""
    while not until.is_set():
        sum(range(1000))


async def health_lost(made: Replica) -> str:
    """The cause for which the replica is unhealthy, while its step loop still hangs."""
    while True:
        try:
            made.engine.check_health()
        except ReplicaLost as lost:
            return str(lost)
        await asyncio.sleep(0.05)


def cannot_load(*_: Any) -> None:
    raise CheckpointError("no weights of the second half")


def is_killed(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (cannot_load, "Rank 1 cannot start: CheckpointError: no weights of the second half."),
        (is_killed, "Rank 1 was ended by SIGKILL while it started; see its log."),
    ],
    ids=["raises", "killed"],
)
def test_a_rank_that_cannot_start_leaves_no_replica(fault: Callable[..., Any], cause: str) -> None:
    before, segments = children(), segments_of(os.getpid())

    with pytest.raises(RankStartError) as raised:
        build.build_engine(config(), launcher=FaultyLauncher(UnstartableTask, fault))

    assert str(raised.value) == cause
    assert children() == before
    assert segments_of(os.getpid()) == segments


def be_rank_0(connection: Connection) -> None:
    """Be a replica that computes a step for ever, until it is killed."""

    async def scene(made: Replica) -> None:
        made.gate.send("begin")
        asking = asyncio.create_task(answer(made.engine))
        connection.send((made.pid, await made.message()))
        await asking

    with replica(wait_to_go_on) as made:
        asyncio.run(scene(made))


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_a_killed_replica_leaves_no_rank_and_no_segment(*, is_stopped: bool) -> None:
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    rank_0 = context.Process(target=be_rank_0, args=(other,))
    rank_0.start()
    other.close()
    try:
        assert connection.poll(HANG_S)
        pid, message = connection.recv()
        assert message == "in a step"
        assert rank_0.pid is not None
        segments = segments_of(pid)
        assert holders_of(segments) == {rank_0.pid, pid}
        assert in_dev_shm(pid) == in_dev_shm(rank_0.pid) == []
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        rank = os.pidfd_open(pid)
    finally:
        rank_0.kill()
        rank_0.join()
        connection.close()

    assert select.select([rank], [], [], HANG_S)[0]
    os.close(rank)
    assert holders_of(segments) == set()
