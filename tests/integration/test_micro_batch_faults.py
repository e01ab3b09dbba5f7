"""A rank has a fault in a step in two halves: while one computes, and the other communicates.

The replica ends as it does in a whole step, see `test_rank_faults`: within bounds, with a sentence
that names rank and cause, and no process and no shared memory is left.
"""

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

import pytest

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.stages import Collective, Stages
from tandem_engine.runner.stage_collectives import CommunicatorCollectives
from tests.integration.faulty_ranks import (
    Fault,
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
        # First: once a step is predicted, a rank may not compute for much longer than that.
        made.gate.send("begin")
        asking = asyncio.create_task(answer(made.engine))
        assert await made.message() == "in a step"
        return await asking, await answer(made.engine)

    with replica(compute_on, within(half), settings=cut_config()) as made:
        slow, usual = asyncio.run(scene(made))
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
