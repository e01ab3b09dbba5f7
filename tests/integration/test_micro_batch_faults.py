"""A rank has a fault in a step in two halves: while one computes, and the other communicates.

The replica ends as it does in a whole step, see `test_rank_faults`: within bounds, with a sentence
that names rank and cause, and no process and no shared memory is left.
"""

import asyncio
import multiprocessing
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

import pytest

from benchmarks.overlap.errors import LinkError
from benchmarks.overlap.link import End, enter, shaped_link
from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.stages import Collective, Stages
from tandem_engine.runner.rank_world import GlooWorld
from tandem_engine.runner.stage_collectives import CommunicatorCollectives
from tests.integration.faulty_ranks import (
    Fault,
    FaultyTask,
    PutIn,
    Replica,
    answer,
    be_patient,
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
from tests.integration.forced_cuts import forced_cuts
from tests.integration.rank_processes import has_ended, holders_of, segments_of
from tests.patience import HANG_S

pytestmark = pytest.mark.slow

HALVES: Final = ("computes", "communicates")
"""Action of the half that the fault is in."""
IN_EITHER: Final = pytest.mark.parametrize("half", HALVES)


class SplitStep:
    """The first step in two halves after a message through the gate.

    Its first collective begins when the other half begins to compute; then the fault is in one of
    both, and the other goes on.
    """

    def __init__(self, half: str, fault: Fault, gate: Connection) -> None:
        self._half, self._fault, self._gate = half, fault, gate
        self._both = threading.Barrier(2, timeout=HANG_S)
        self._absent: set[str] = set()
        self._num_waiting = 0

    def put_in(self, put: Callable[..., None]) -> None:
        stages, all_reduce = Decoder.stages, CommunicatorCollectives.all_reduce

        def watched(decoder: Decoder, *args: Any, **values: Any) -> Stages:
            self._num_waiting += 1
            return self._watched(stages(decoder, *args, **values))

        def met(collectives: CommunicatorCollectives, tensor: Any) -> None:
            self._meet("communicates")
            all_reduce(collectives, tensor)

        put(Decoder, "stages", watched)
        put(CommunicatorCollectives, "all_reduce", met)

    def _watched(self, stages: Stages) -> Generator[Collective, Any, Any]:
        is_first = self._num_waiting == len(HALVES)
        self._num_waiting -= 1
        if is_first and self._gate.poll():
            self._gate.recv()
            self._absent = set(HALVES)
        elif not is_first:
            self._meet("computes")
        return (yield from stages)

    def _meet(self, half: str) -> None:
        if half not in self._absent:
            return
        self._absent.discard(half)
        self._both.wait()
        if half == self._half:
            self._fault(self._gate)


def within(half: str) -> PutIn:
    """Put a fault into one half of a step."""
    return partial(_put_in, half=half)


def _put_in(
    fault: Fault, gate: Connection, put: Callable[..., None] = setattr, *, half: str
) -> None:
    SplitStep(half, fault, gate).put_in(put)


@dataclass(frozen=True, slots=True)
class FaultyTaskAtEnd(FaultyTask):
    """A rank with a fault, in the namespace of one end of a link."""

    namespace: str

    def run(self, connection: Connection) -> None:
        enter(self.namespace)
        FaultyTask.run(self, connection)


def cut_config() -> EngineConfig:
    """Micro-batches; each answer computes the whole prompt."""
    return config(
        quantization="w8a8",
        stream_options=StreamOptions(micro_batch=True),
        schedule=ScheduleConfig(
            cache_block_size=16, async_scheduling_enable=True, enable_prefix_cache=False
        ),
    )


@pytest.fixture(autouse=True)
def _patient_cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    be_patient(monkeypatch)
    with forced_cuts():
        yield


@pytest.fixture
def _short_silence(monkeypatch: pytest.MonkeyPatch, _patient_cuts: None) -> None:
    shorten_bounds(monkeypatch)


@IN_EITHER
def test_a_rank_killed_in_a_half_ends_the_replica_and_another_takes_its_place(half: str) -> None:
    async def scene(lost: Replica) -> tuple[tuple[int, ...], str]:
        return await answer(lost.engine), await lost_by(lost, signal.SIGKILL)

    with replica(wait_to_go_on, within(half), settings=cut_config()) as lost:
        expected, cause = asyncio.run(scene(lost))
    with replica(settings=cut_config()) as other:
        said = asyncio.run(answer(other.engine))

    assert "Rank 1" in cause
    assert "SIGKILL" in cause
    assert said == expected


@pytest.mark.usefixtures("_short_silence")
@IN_EITHER
def test_a_rank_stopped_in_a_half_ends_the_replica_and_is_gone(half: str) -> None:
    with replica(wait_to_go_on, within(half), settings=cut_config()) as made:
        cause = asyncio.run(lost_by(made, signal.SIGSTOP))

    assert f"Rank 1 (process {made.pid}) has been silent for 2 s, and is stopped." in cause


@pytest.mark.usefixtures("_short_silence")
@IN_EITHER
def test_a_rank_that_is_slow_in_a_half_is_waited_for(half: str) -> None:
    async def scene(made: Replica) -> tuple[tuple[int, ...], tuple[int, ...]]:
        usual = await answer(made.engine)
        made.gate.send("begin")
        asking = asyncio.create_task(answer(made.engine))
        assert await made.message() == "in a step"
        return usual, await asking

    with replica(compute_on, within(half), settings=cut_config()) as made:
        usual, slow = asyncio.run(scene(made))
        made.engine.check_health()

    assert slow == usual


@IN_EITHER
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (run_out_of_memory, "MemoryError: no 7 GiB for the sums"),
        (fail, "RuntimeError: there is no such kernel"),
    ],
    ids=["out of memory", "raises"],
)
def test_a_rank_that_fails_in_a_half_ends_the_replica(half: str, fault: Fault, error: str) -> None:
    with replica(fault, within(half), settings=cut_config()) as made:
        cause = asyncio.run(lost_in_a_step(made))

    assert cause.startswith(f"Rank 1 cannot go on: {error}; see its log.")


@IN_EITHER
def test_rank_0_that_fails_in_a_half_ends_the_replica(
    half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica(settings=cut_config()) as made:
        gate, begin = multiprocessing.Pipe()
        within(half)(fail, gate, monkeypatch.setattr)
        begin.send("begin")

        cause = asyncio.run(lost_in_a_step(made))

        gate.close()
        begin.close()
    assert cause == "Rank 0 cannot go on: RuntimeError: there is no such kernel."


def be_rank_0_at_an_end(ends: tuple[End, End], half: str, connection: Connection) -> None:
    """Be a replica over a link, of which a step waits until the link is cut."""
    enter(ends[0].namespace)

    async def scene(made: Replica) -> str:
        await answer(made.engine)
        asking = asyncio.create_task(lost_in_a_step(made))
        assert await made.message() == "in a step"
        connection.send((made.pid, segments_of(made.pid)))
        assert await asyncio.to_thread(connection.poll, HANG_S)
        made.gate.send(connection.recv())
        return await asking

    with pytest.MonkeyPatch.context() as patch, forced_cuts():
        shorten_bounds(patch)
        made = replica(
            wait_to_go_on,
            within(half),
            settings=cut_config(),
            kind=FaultyTaskAtEnd,
            place=(ends[1].namespace,),
            world=GlooWorld([end.address for end in ends]),
        )
        with made as over_link:
            cause = asyncio.run(scene(over_link))
        connection.send(cause)


def take_down(end: End) -> None:
    command = ("ip", "-n", str(end.namespace), "link", "set", "veth0", "down")
    subprocess.run(command, check=True)


@IN_EITHER
def test_a_link_that_is_cut_in_a_half_ends_the_replica(
    half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A namespace has no names of hosts, which torch's store warns of.
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    try:
        with shaped_link() as link:
            rank_0 = context.Process(target=be_rank_0_at_an_end, args=(link.ends, half, other))
            rank_0.start()
            other.close()
            try:
                assert connection.poll(HANG_S)
                pid, segments = connection.recv()
                take_down(link.ends[0])
                connection.send("go on")
                assert connection.poll(HANG_S), "the replica hangs"
                cause = connection.recv()
                rank_0.join(HANG_S)
            finally:
                rank_0.kill()
                rank_0.join()
    except LinkError as error:
        pytest.skip(f"there can be no link: {error}")

    assert has_ended(pid)
    assert holders_of(segments) == set()
    addresses = [re.escape(end.address) for end in link.ends]
    assert re.match(
        rf"Rank 1 \({addresses[1]}\) has ended, hangs, or cannot be reached from rank 0 "
        rf"\({addresses[0]}\): A rank was silent for longer than 2 s.",
        cause,
    )
    assert "has made no call" not in cause
