"""A rank of a replica is killed, stopped, slow, or fails: the replica ends, and leaves nothing.

Its processes are real, and a fault is in the middle of a step: behind a sum of all ranks.
"""

import asyncio
import multiprocessing
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from tandem_engine import build
from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.errors import CheckpointError, ReplicaLost
from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.runner import rank_group, rank_process
from tandem_engine.runner.rank_launcher import (
    ProcessLauncher,
    RankHandle,
    RankStartError,
    RankTask,
)
from tandem_engine.runner.stage_collectives import CommunicatorCollectives
from tests.integration.bench import conversation
from tests.integration.rank_processes import children, has_ended
from tests.patience import HANG_S
from tests.tiny import TINY
from tests.unit.engine.native import native_kernels

SILENCE_S: Final = 2.0
"""Longest silence of a rank, in the tests of silence; in the others none is too long."""
NUM_TOKENS: Final = 12

Fault = Callable[[Connection], None]


def wait_to_go_on(gate: Connection) -> None:
    gate.send("in a step")
    gate.recv()


def compute_on(gate: Connection) -> None:
    """Use the processor for longer than a rank may be silent."""
    gate.send("in a step")
    end = time.process_time() + 1.5 * SILENCE_S
    while time.process_time() < end:
        pass


def run_out_of_memory(_: Connection) -> None:
    raise MemoryError("no 7 GiB for the sums")


def fail(_: Connection) -> None:
    raise RuntimeError("there is no such kernel")


@dataclass(frozen=True, slots=True)
class FaultyTask(RankTask):
    """A rank with a fault in the step that follows a message through the gate."""

    gate: Connection
    fault: Fault

    def run(self, connection: Connection) -> None:
        put_in(self.fault, self.gate)
        RankTask.run(self, connection)


@dataclass(frozen=True, slots=True)
class UnstartableTask(RankTask):
    """A rank with a fault while it loads its weights."""

    fault: Callable[..., Any]

    def run(self, connection: Connection) -> None:
        rank_process.load_part = self.fault
        RankTask.run(self, connection)


class FaultyLauncher(ProcessLauncher):
    """Starts ranks with a fault, as children of this process."""

    def __init__(self, kind: type[RankTask], *values: Any) -> None:
        super().__init__()
        self._kind, self._values = kind, values

    def launch(self, tasks: Sequence[RankTask]) -> Sequence[RankHandle]:
        names = [field.name for field in fields(RankTask)]
        return super().launch(
            [self._kind(*(getattr(task, name) for name in names), *self._values) for task in tasks]
        )


def put_in(fault: Fault, gate: Connection, put: Callable[..., None] = setattr) -> None:
    """Let this process have a fault behind the first sum after a message through the gate."""
    all_reduce = CommunicatorCollectives.all_reduce

    def faulty(collectives: CommunicatorCollectives, tensor: Any) -> None:
        all_reduce(collectives, tensor)
        if gate.poll():
            gate.recv()
            fault(gate)

    put(CommunicatorCollectives, "all_reduce", faulty)


def config(tp: int = 2) -> EngineConfig:
    native_kernels()
    return EngineConfig(
        model_path=str(TINY),
        parallelism=ParallelismConfig(tp=tp),
        dtype="float32",
        max_seq_len=512,
        memory_bytes=3 << 30,
        num_kv_blocks=128,
        schedule=ScheduleConfig(cache_block_size=16, async_scheduling_enable=True),
    )


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "RANK_TIMEOUT_S", HANG_S)


@pytest.fixture
def _short_silence(monkeypatch: pytest.MonkeyPatch, _patience: None) -> None:
    monkeypatch.setattr(build, "RANK_TIMEOUT_S", SILENCE_S)
    monkeypatch.setattr(rank_group, "_END_TIMEOUT_S", SILENCE_S / 2)


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


class Replica:
    """An engine on two ranks, of which rank 1 may have a fault."""

    def __init__(self, fault: Fault = fail) -> None:
        before = children()
        context = multiprocessing.get_context("spawn")
        self.gate, other = context.Pipe()
        launcher = FaultyLauncher(FaultyTask, other, fault)
        self.engine = build.build_engine(config(), launcher=launcher)
        other.close()
        (self.pid,) = children() - before

    async def message(self) -> str:
        """What comes through the gate."""
        assert await asyncio.to_thread(self.gate.poll, HANG_S)
        message: str = self.gate.recv()
        return message

    async def end(self) -> str:
        """Wait until the replica has ended by itself; return the cause, which all callers get."""
        async with asyncio.timeout(HANG_S):
            await asyncio.to_thread(self.engine._loop.join)
        assert has_ended(self.pid)
        with pytest.raises(ReplicaLost) as raised:
            self.engine.check_health()
        cause = str(raised.value)
        with pytest.raises(ReplicaLost, match=re.escape(cause)):
            await answer(self.engine)
        return cause


@contextmanager
def replica(fault: Fault = fail) -> Iterator[Replica]:
    """A replica of its own; in the end, no rank of it is left."""
    made = Replica(fault)
    try:
        yield made
    finally:
        asyncio.run(made.engine.stop())
        made.gate.close()
    assert has_ended(made.pid)


async def answer(engine: AsyncEngine) -> tuple[int, ...]:
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    stream = engine.submit("question", conversation(3), params)
    return tuple([token_id async for output in stream for token_id in output.token_ids])


async def lost_in_a_step(made: Replica) -> str:
    """Begin the fault in a step of a request; return the cause that its stream ends with."""
    made.gate.send("begin")
    with pytest.raises(ReplicaLost) as raised:
        async with asyncio.timeout(HANG_S):
            await answer(made.engine)
    cause = str(raised.value)
    assert await made.end() == cause
    return cause


async def lost_by(made: Replica, number: signal.Signals) -> str:
    """Send a signal to the rank while it computes a step; return the cause of the end."""
    asking = asyncio.create_task(lost_in_a_step(made))
    assert await made.message() == "in a step"
    os.kill(made.pid, number)
    return await asking


@pytest.mark.slow
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
        (run_out_of_memory, "MemoryError: no 7 GiB for the sums"),
        (fail, "RuntimeError: there is no such kernel"),
    ],
    ids=["out of memory", "raises"],
)
def test_a_rank_that_fails_in_a_step_ends_the_replica(fault: Fault, error: str) -> None:
    with replica(fault) as made:
        cause = asyncio.run(lost_in_a_step(made))

    assert cause.startswith(f"Rank 1 cannot go on: {error}; see its log.")


def test_rank_0_that_fails_in_a_step_ends_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    with replica() as made:
        gate, begin = multiprocessing.Pipe()
        put_in(fail, gate, monkeypatch.setattr)
        begin.send("begin")

        cause = asyncio.run(lost_in_a_step(made))

        gate.close()
        begin.close()
    assert cause == "Rank 0 cannot go on: RuntimeError: there is no such kernel."


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


def segments_of(pid: int) -> frozenset[int]:
    """Inodes of the segments that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return frozenset(int(line.split()[4]) for line in lines if "memfd:tandem-segment" in line)


def in_dev_shm(pid: int) -> list[str]:
    """Files of /dev/shm that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if " /dev/shm/" in line]


def holders_of(segments: frozenset[int]) -> set[int]:
    """Processes that have any of these segments mapped."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if segments & segments_of(int(folder.name)):
                found.add(int(folder.name))
        except OSError:
            continue  # of another user, or it has ended meanwhile
    return found


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
