"""The threads inside the kernels: any number of them, several callers, children, and idle ones."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.threads.cores import ThreadPlan
from tandem_engine.device.packing import pack
from tests.patience import HANG_S
from tests.unit.engine.native import native_kernels, threads_of

SIZE = 512
# Far above what any of these takes, and below what a test run may take.


@pytest.fixture
def kernels() -> Iterator[NativeKernels]:
    found = native_kernels()
    with threads_of(found, 1):
        yield found


class Work:
    """Products and norms of all sizes, whose results any number of threads must agree on."""

    def __init__(self, kernels: NativeKernels) -> None:
        generator = torch.Generator().manual_seed(0)
        self._kernels = kernels
        self._weight = pack(kernels, torch.randn(SIZE, SIZE, generator=generator))
        self._norm = torch.rand(SIZE, generator=generator)
        self._x = torch.randn(257, SIZE, generator=generator)

    def __call__(self) -> list[Tensor]:
        found = []
        for rows in (1, 3, 16, 257):
            y = self._kernels.linear(self._x[:rows], self._weight)
            found.append(self._kernels.rms_norm(y, self._norm, 1e-6))
        return found


def workers() -> list[Path]:
    """The folders in /proc of all threads that any library has started."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        # One that was let go may end meanwhile.
        with suppress(OSError):
            if (task / "comm").read_text().startswith("tandem-cpu-"):
                found.append(task)
    return found


def has_workers(count: int) -> bool:
    return len(workers()) == count


def cpu_ns(task: Path) -> int:
    """CPU time of a thread, by the kernel's scheduler."""
    return int((task / "schedstat").read_text().split()[0])


def is_asleep(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"


def comes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + HANG_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_any_number_of_threads_gives_the_same_bits(kernels: NativeKernels, count: int) -> None:
    work = Work(kernels)
    expected = work()

    with threads_of(kernels, count):
        results = [work() for _ in range(20)]

    assert all(same(result, expected) for result in results)


def test_the_number_of_threads_may_change_between_calls(kernels: NativeKernels) -> None:
    work = Work(kernels)
    expected = work()

    for count in (2, 5, 1, 3, 8, 2):
        kernels.library.use_threads(ThreadPlan(num_threads=count))
        assert kernels.library.num_threads == count
        assert same(work(), expected)


def test_a_pool_has_as_many_threads_as_asked_for_and_they_go_when_others_come(
    kernels: NativeKernels,
) -> None:
    work = Work(kernels)
    for count in (4, 2, 1):
        with threads_of(kernels, count):
            work()
            assert comes_true(partial(has_workers, count - 1))


def test_several_threads_of_the_program_compute_at_once(kernels: NativeKernels) -> None:
    work = Work(kernels)
    expected = work()
    wrong: list[int] = []

    def caller(number: int) -> None:
        wrong.extend(number for _ in range(30) if not same(work(), expected))

    with threads_of(kernels, 3):
        callers = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
        for thread in callers:
            thread.start()
        for count in (2, 4, 3, 1, 2):
            kernels.library.use_threads(ThreadPlan(num_threads=count))
        for thread in callers:
            thread.join(HANG_S)
        alive = [thread.name for thread in callers if thread.is_alive()]

    assert (wrong, alive) == ([], [])


FORK = """
import os, signal, threading, torch
from tandem_engine.device.cpu.threads.cores import ThreadPlan
from tests.unit.engine.native import native_kernels
from tests.unit.engine.test_native_thread_pool import Work, same

torch.set_num_threads(1)
kernels = native_kernels()
kernels.library.use_threads(ThreadPlan(num_threads=3))
work = Work(kernels)
expected = work()
stop = threading.Event()
def go_on():
    while not stop.is_set():
        work()
busy = threading.Thread(target=go_on, daemon=True)
busy.start()  # so that a fork falls into the middle of a call
for _ in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # one that waits for threads that it has not got
        before = len(os.listdir("/proc/self/task"))
        result = work()
        after = len(os.listdir("/proc/self/task"))
        os._exit(0 if same(result, expected) and (before, after) == (1, 3) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
busy.join()
assert same(work(), expected)
"""


@pytest.mark.slow
def test_a_child_has_a_pool_of_its_own() -> None:
    native_kernels()

    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=False, timeout=HANG_S
    )

    assert done.returncode == 0, done.stderr


def test_threads_that_have_nothing_to_do_burn_nothing(kernels: NativeKernels) -> None:
    work = Work(kernels)
    with threads_of(kernels, 4):
        work()
        assert comes_true(partial(has_workers, 3))
        tasks = workers()
        # They fall asleep, however long the machine takes to let them.
        assert comes_true(lambda: all(map(is_asleep, tasks)))
        before = [cpu_ns(task) for task in tasks]
        time.sleep(0.2)
        after = [cpu_ns(task) for task in tasks]

    assert after == before


def test_a_pool_stays_on_its_cpus_and_the_caller_goes_back_where_it_was(
    kernels: NativeKernels,
) -> None:
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    work = Work(kernels)

    kernels.library.use_threads(ThreadPlan(num_threads=2, cpus=(cpu, cpu)))
    work()
    assert comes_true(partial(has_workers, 1))
    assert os.sched_getaffinity(int(workers()[0].name)) == {cpu}
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("own", [True, False])
def test_threads_that_are_pinned_compute_the_same(kernels: NativeKernels, own: bool) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    work = Work(kernels)
    expected = work()

    for plan in (
        ThreadPlan(num_threads=len(cpus), cpus=tuple(cpus), own=own),
        # The kernel refuses such a CPU; the threads stay where they may be.
        ThreadPlan(num_threads=2, cpus=(100_000, 100_001), own=own),
    ):
        kernels.library.use_threads(plan)
        assert same(work(), expected)


def test_signals_stay_with_python(kernels: NativeKernels) -> None:
    seen: list[int] = []
    before: Any = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        with threads_of(kernels, 4):
            work = Work(kernels)
            for _ in range(20):
                os.kill(os.getpid(), signal.SIGUSR1)
                work()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert seen == [signal.SIGUSR1] * 20
