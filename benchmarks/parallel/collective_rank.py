"""A rank of the benchmark of collectives: a process that measures beside the others."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Final

import torch
from torch import Tensor

from tandem_engine.build import RANK_TIMEOUT_S
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.segment import SegmentAddress
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator
from tandem_engine.parallel.world import WorldShape

COPIED_BYTES: Final = 32 << 20
"""Copied at once by each rank; with its target twice that, more than caches hold."""
SHARED_MEMORY: Final = "shared memory"
COLD: Final = "shared memory, tensors not in a cache"
_COLD_BYTES: Final = 64 << 20
"""Of the tensors that take turns in a rank."""
_MIN_CALLS: Final = 10
_MAX_CALLS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that the ranks measure."""

    ranks: int
    sizes: tuple[int, ...]
    seconds: float
    pin: bool
    segment: SegmentAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of each call of one size in one way, of rank 0; no size: of a copy of memory."""

    way: str
    size: int
    seconds: tuple[float, ...]


def main(case: Case, rank: int, sender: Connection) -> None:
    """Measure as one rank; rank 0 sends each result, then None."""
    torch.set_num_threads(1)
    if case.pin:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    shape = WorldShape(case.ranks)
    with SharedMemoryCommunicator(case.segment, shape, rank, timeout_s=RANK_TIMEOUT_S) as shared:
        for measured in _measure_all(case, shared):
            if rank == 0:
                sender.send(measured)
        if rank == 0:
            sender.send(None)


def _measure_all(case: Case, shared: SharedMemoryCommunicator) -> Iterator[Measured]:
    for size in case.sizes:
        # Beside each size: what else runs on the machine changes from minute to minute.
        yield Measured(way="copy", size=0, seconds=_time(case, shared, _copying(shared)))
        work = _reducing(shared, [_tensor(size)])
        yield Measured(way=SHARED_MEMORY, size=size, seconds=_time(case, shared, work))
        if size >= _COLD_BYTES >> 6:
            tensors = [_tensor(size) for _ in range(max(2, _COLD_BYTES // size))]
            work = _reducing(shared, tensors)
            yield Measured(way=COLD, size=size, seconds=_time(case, shared, work))


def _tensor(size: int) -> Tensor:
    return torch.zeros(size // 2, dtype=torch.bfloat16)


def _reducing(communicator: Communicator, tensors: list[Tensor]) -> Callable[[], None]:
    turns = cycle(tensors)
    return lambda: communicator.all_reduce(next(turns))


def _copying(shared: SharedMemoryCommunicator) -> Callable[[], None]:
    """All ranks copy at the same time: it is done when the last one is."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8)
    target, flag = torch.ones_like(source), torch.zeros(1)

    def work() -> None:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), COPIED_BYTES)
        shared.all_reduce(flag)

    return work


def _time(
    case: Case, shared: SharedMemoryCommunicator, work: Callable[[], None]
) -> tuple[float, ...]:
    """Seconds of each call; all ranks make as many, which rank 0 chooses from some first ones."""
    begin = time.perf_counter()
    for _ in range(_MIN_CALLS):
        work()
    taken = (time.perf_counter() - begin) / _MIN_CALLS
    calls = torch.tensor([min(_MAX_CALLS, max(_MIN_CALLS, int(case.seconds / taken)))])
    shared.broadcast(calls, 0)
    seconds = []
    for _ in range(int(calls)):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return tuple(seconds)
