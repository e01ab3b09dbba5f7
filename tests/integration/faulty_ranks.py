"""Replicas of which a rank has a fault in the middle of a step: what tests of such faults share."""

import asyncio
import gc
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import pytest

from tandem_engine import build
from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.runner import rank_group
from tandem_engine.runner.rank_launcher import ProcessLauncher, RankHandle, RankTask
from tandem_engine.runner.stage_collectives import CommunicatorCollectives
from tests.integration.bench import conversation
from tests.integration.rank_processes import children, has_ended, memory_for_two, segments_of
from tests.patience import HANG_S
from tests.tiny import TINY
from tests.unit.engine.native import native_kernels

SILENCE_S: Final = 2.0
"""Longest silence of a rank, in the tests of silence; in the others none is too long."""
NUM_TOKENS: Final = 12

Fault = Callable[[Connection], None]


class PutIn(Protocol):
    """Lets this process have a fault in a step that follows a message through the gate."""

    def __call__(
        self, fault: Fault, gate: Connection, put: Callable[..., None] = setattr
    ) -> None: ...


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
    put_in: PutIn

    def run(self, connection: Connection) -> None:
        self.put_in(self.fault, self.gate)
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


def behind_a_sum(fault: Fault, gate: Connection, put: Callable[..., None] = setattr) -> None:
    """Put a fault behind the first sum after a message through the gate; see `PutIn`."""
    all_reduce = CommunicatorCollectives.all_reduce

    def faulty(collectives: CommunicatorCollectives, tensor: Any) -> None:
        all_reduce(collectives, tensor)
        if gate.poll():
            gate.recv()
            fault(gate)

    put(CommunicatorCollectives, "all_reduce", faulty)


def config(tp: int = 2, **values: Any) -> EngineConfig:
    native_kernels()
    usual: dict[str, Any] = {
        "model_path": str(TINY),
        "parallelism": ParallelismConfig(tp=tp),
        "dtype": "float32",
        "max_seq_len": 512,
        "memory_bytes": memory_for_two(),
        "num_kv_blocks": 128,
        "schedule": ScheduleConfig(cache_block_size=16, async_scheduling_enable=True),
    }
    return EngineConfig(**{**usual, **values})


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no machine be so slow that a rank is taken for a silent one."""
    monkeypatch.setattr(build, "RANK_TIMEOUT_S", HANG_S)


def shorten_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lost rank be noticed soon."""
    monkeypatch.setattr(build, "RANK_TIMEOUT_S", SILENCE_S)
    monkeypatch.setattr(rank_group, "_END_TIMEOUT_S", SILENCE_S / 2)


class Replica:
    """An engine on two ranks, of which rank 1 may have a fault."""

    def __init__(
        self,
        fault: Fault = fail,
        put_in: PutIn = behind_a_sum,
        *,
        settings: EngineConfig | None = None,
    ) -> None:
        before = children()
        context = multiprocessing.get_context("spawn")
        self.gate, other = context.Pipe()
        launcher = FaultyLauncher(FaultyTask, other, fault, put_in)
        self.engine = build.build_engine(settings or config(), launcher=launcher)
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
def replica(fault: Fault = fail, put_in: PutIn = behind_a_sum, **values: Any) -> Iterator[Replica]:
    """A replica of its own; in the end, no rank of it is left, and no memory that they shared."""
    segments = segments_of(os.getpid())
    made = Replica(fault, put_in, **values)
    try:
        yield made
    finally:
        asyncio.run(made.engine.stop())
        made.gate.close()
    assert has_ended(made.pid)
    # Fewer where memory of an earlier test was collected meanwhile.
    gc.collect()
    assert segments_of(os.getpid()) <= segments


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
