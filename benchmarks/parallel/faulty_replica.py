"""A replica of several ranks under load, one of which has a fault: a process of its own."""

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Any, Final

from tandem_engine import build
from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.device.cpu.memory import resident_memory
from tandem_engine.model.decoder import Decoder
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.rank_launcher import ProcessLauncher, RankHandle, RankTask

STOPS: Final = "stops"
HANGS: Final = "hangs"
FAULTS: Final = (STOPS, HANGS)
_NUM_STREAMS: Final = 8
_NUM_TOKENS: Final = 64
_PROMPT: Final = tuple(range(20, 60))
_BLAMED: Final = re.compile(r"Rank (\d+)")
_POLL_S: Final = 0.01
_GIVE_UP_S: Final = 120.0
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of a replica."""

    model: Path
    shape: ParallelShape
    silence_s: float
    """Longest silence of a rank."""
    fault: str = ""
    """One of FAULTS; empty: none."""
    rank: int = 0
    """The one that has it."""
    seconds: float = 0.0
    """Time under load without a fault."""


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a replica, or of the time that it was to live."""

    blamed: int | None
    """The rank that is named; None: none is lost."""
    seconds: float
    """From the fault, or from the begin of the load."""
    cause: str


@dataclass(frozen=True, slots=True)
class _HangingTask(RankTask):
    """A rank that hangs at the begin of a step behind a message through its gate."""

    gate: Connection

    def run(self, connection: Connection) -> None:
        logging.disable(logging.CRITICAL)
        stages = Decoder.stages

        def watched(*args: Any, **values: Any) -> Any:
            if self.gate.poll():
                self.gate.send("hangs")
                Event().wait()
            return stages(*args, **values)

        Decoder.stages = watched  # type: ignore[method-assign]
        RankTask.run(self, connection)


class _Launcher(ProcessLauncher):
    """Starts ranks that can hang, and keeps hold of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[int, Connection] = {}
        self.ranks: dict[int, RankHandle] = {}

    def launch(self, tasks: Sequence[RankTask]) -> Sequence[RankHandle]:
        hanging = []
        for task in tasks:
            self.gates[task.rank], inner = get_context("spawn").Pipe()
            hanging.append(_HangingTask(task.rank, task.settings, task.address, inner))
        handles = super().launch(hanging)
        self.ranks = {handle.rank: handle for handle in handles}
        return handles

    def begin(self, fault: str, rank: int) -> None:
        """Have a rank fail; return when it does."""
        if fault == STOPS:
            os.kill(self.ranks[rank].pid, signal.SIGSTOP)
            return
        self.gates[rank].send("hang")
        if not self.gates[rank].poll(_GIVE_UP_S):
            raise RuntimeError(f"rank {rank} began no step within {_GIVE_UP_S:.0f} s of load")
        self.gates[rank].recv()


def main(case: Case, sender: Connection) -> None:
    """Run a case, and send its end."""
    # The end of a replica is what is measured, and tracebacks of it would hide the figures.
    logging.disable(logging.CRITICAL)
    build.RANK_TIMEOUT_S = case.silence_s
    launcher = _Launcher()
    shape = case.shape
    config = EngineConfig(
        model_path=str(case.model),
        parallelism=ParallelismConfig(tp=shape.tp, pp=shape.pp, dp=shape.dp),
        dtype="float32",
        max_seq_len=512,
        memory_bytes=2 * shape.world_size * resident_memory() + shape.world_size * _GIB,
        num_kv_blocks=128,
        schedule=ScheduleConfig(cache_block_size=16),
    )
    engine = build.build_engine(config, launcher=launcher)
    sender.send(asyncio.run(_ended(engine, launcher, case)))


async def _ended(engine: AsyncEngine, launcher: _Launcher, case: Case) -> Ended:
    load = [asyncio.create_task(_ask(engine, number)) for number in range(_NUM_STREAMS)]
    try:
        # Steps are predicted, and so bounded, once some were measured.
        await asyncio.wait(load, timeout=2.0)
        begun = time.monotonic()
        if case.fault:
            await asyncio.to_thread(launcher.begin, case.fault, case.rank)
            begun = time.monotonic()
        return await _watch(engine, begun, _GIVE_UP_S if case.fault else case.seconds)
    finally:
        for task in load:
            task.cancel()
        await engine.stop()


async def _watch(engine: AsyncEngine, begun: float, seconds: float) -> Ended:
    """Wait until a rank is lost, or for some seconds."""
    while time.monotonic() < begun + seconds:
        try:
            engine.check_health()
        except ReplicaLost as error:
            blamed = _BLAMED.search(str(error))
            rank = int(blamed[1]) if blamed else None
            return Ended(rank, time.monotonic() - begun, str(error))
        await asyncio.sleep(_POLL_S)
    return Ended(None, time.monotonic() - begun, "")


async def _ask(engine: AsyncEngine, number: int) -> None:
    """Ask one question after the other, until the replica is lost."""
    params = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0, ignore_eos=True)
    with suppress(ReplicaLost):
        for turn in range(1 << 30):
            prompt = (*_PROMPT, 60 + number, 60 + turn % 100)
            async for _ in engine.submit(f"{number} {turn}", prompt, params):
                pass
