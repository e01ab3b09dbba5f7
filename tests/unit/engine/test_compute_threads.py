"""CoreLocks between processes, and the threads that a replica chooses by them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore
from typing import Self

import pytest

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.cpu.threads import compute_threads
from tandem_engine.device.cpu.threads.compute_threads import (
    ComputeThreads,
    ThreadSettings,
    read_thread_settings,
)
from tandem_engine.device.cpu.threads.core_locks import CoreLocks
from tandem_engine.device.cpu.threads.cores import HostCores, Pin, ThreadPlan
from tests.descriptors import no_descriptor_left
from tests.patience import HANG_S
from tests.unit.engine.native import native_kernels

FOUR = HostCores(allowed=frozenset(range(4)), num_online=4, siblings={})
OTHER = """
import sys
from pathlib import Path
from tandem_engine.device.cpu.threads.core_locks import CoreLocks
locks = CoreLocks(Path(sys.argv[1]))
cores = locks.take(map(int, sys.argv[2].split(",")), 99)
print(cores, locks.num_replicas(), flush=True)
sys.stdin.read()
"""


@contextmanager
def other_replica(folder: Path, cores: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that locks what it can of `cores`, and holds it until this ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder), cores],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


class Chooser:
    """The threads of a replica, and the plans that were put into force."""

    def __init__(
        self,
        folder: Path,
        *,
        num_threads: int | None = None,
        pin: Pin = Pin.AUTO,
        host: HostCores = FOUR,
    ) -> None:
        self.plans: list[ThreadPlan] = []
        self.locks = CoreLocks(folder)
        settings = ThreadSettings(num_threads=num_threads, pin=pin)
        self.threads = ComputeThreads(host, settings, self.locks, self.plans.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cores"


def test_no_core_is_claimed_twice_by_two_processes(folder: Path) -> None:
    locks = CoreLocks(folder)
    with other_replica(folder, "0,2"):
        assert locks.take([0, 1, 2, 3], 3) == [1, 3]
        assert locks.num_replicas() == 2


def test_core_locks_go_with_the_process_however_it_ends(folder: Path) -> None:
    with other_replica(folder, "0,1") as process:
        process.kill()
        process.wait()

        assert CoreLocks(folder).take([0, 1], 2) == [0, 1]


def test_released_core_locks_are_available(folder: Path) -> None:
    one, other = CoreLocks(folder), CoreLocks(folder)
    assert one.take([0, 1], 2) == [0, 1]

    one.release_cores()

    assert other.take([0, 1], 1) == [0]
    assert one.take([0, 1], 2) == [1]


def test_a_child_holds_no_core_locks_of_its_parent(folder: Path) -> None:
    locks = CoreLocks(folder)
    assert locks.take([0], 1) == [0]
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, f"{locks.cores} {locks.take([0], 1)}".encode())
        os.read(os.open("/dev/zero", os.O_RDONLY), 0)
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read_end, 100) == b"[] []"
    os.close(read_end)
    os.close(write_end)


def test_a_planted_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (folder / "core-0").symlink_to(tmp_path / "elsewhere")

    assert CoreLocks(folder).take([0, 1], 2) == [1]
    assert not (tmp_path / "elsewhere").exists()


def test_a_planted_pipe_blocks_no_process(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "core-0")
    os.mkfifo(folder / "replica-0")
    locks = CoreLocks(folder)

    assert locks.take([0, 1], 2) == [1]
    assert locks.num_replicas() == 1


def test_folder_and_files_are_for_all_users(folder: Path) -> None:
    mask = os.umask(0o077)
    try:
        CoreLocks(folder).take([0], 1)
    finally:
        os.umask(mask)

    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "core-0").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(("asked", "cpus"), [(1, (0,)), (3, (0, 1, 2)), (9, (0, 1, 2, 3))])
def test_a_replica_alone_gets_what_it_asks_for_one_thread_a_core(
    folder: Path, asked: int, cpus: tuple[int, ...]
) -> None:
    with Chooser(folder) as chooser:
        plan = chooser.threads.choose(asked)

        assert plan == ThreadPlan(num_threads=len(cpus), cpus=cpus)
        assert chooser.plans == [plan]


def test_without_a_number_there_is_a_thread_a_core(folder: Path) -> None:
    with Chooser(folder, pin=Pin.ON) as chooser:
        plan = chooser.threads.choose(None)

    assert plan == ThreadPlan(num_threads=4, cpus=(0, 1, 2, 3), own=True)


def test_a_replica_takes_the_cores_that_others_leave(folder: Path) -> None:
    with other_replica(folder, "0,1"), Chooser(folder) as chooser:
        assert chooser.threads.choose(4) == ThreadPlan(num_threads=2, cpus=(2, 3))


def test_a_core_that_is_less_than_the_fair_share_is_left_alone(folder: Path) -> None:
    with other_replica(folder, "0,1,2"), Chooser(folder) as chooser:
        plan = chooser.threads.choose(4)

        assert (plan.num_threads, plan.cpus) == (2, ())
        assert CoreLocks(folder).take([3], 1) == [3]


def test_a_replica_without_a_core_computes_with_its_fair_share_anywhere(folder: Path) -> None:
    with other_replica(folder, "0,1,2,3"), Chooser(folder) as chooser:
        plan = chooser.threads.choose(4)

    assert (plan.num_threads, plan.cpus) == (2, ())
    assert "other replicas" in plan.reason


def test_a_number_of_the_environment_is_kept_whatever_others_have(folder: Path) -> None:
    with other_replica(folder, "0,1,2"), Chooser(folder, num_threads=2) as chooser:
        plan = chooser.threads.choose(4)

        assert (plan.num_threads, plan.cpus) == (2, ())
        # The one that is free is not held back from others.
        assert CoreLocks(folder).take([3], 1) == [3]


def test_nothing_is_claimed_where_nothing_is_pinned(folder: Path) -> None:
    with Chooser(folder, pin=Pin.OFF) as chooser:
        plan = chooser.threads.choose(2)

    assert (plan.num_threads, plan.cpus, plan.reason) == (2, (), "TANDEM_PIN is 'off'")
    assert not folder.exists()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "cores").write_text("a file where the folder should be")
    with Chooser(tmp_path / "cores") as chooser:
        plan = chooser.threads.choose(2)

    assert (plan.num_threads, plan.cpus) == (2, ())
    assert str(tmp_path / "cores") in plan.reason


def test_a_replica_takes_the_cores_of_one_that_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_threads, "RETRY_S", 0.001)
    with Chooser(folder) as chooser:
        with other_replica(folder, "0,1,2,3"):
            assert chooser.threads.choose(4).cpus == ()

        end = time.monotonic() + HANG_S
        while not chooser.threads.has_all_cores and time.monotonic() < end:
            time.sleep(0.001)

        assert chooser.plans[-1] == ThreadPlan(num_threads=4, cpus=(0, 1, 2, 3))


def test_a_replica_out_of_descriptors_keeps_its_threads_and_goes_on_looking(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_threads, "RETRY_S", 0.001)
    with Chooser(folder) as chooser:
        with other_replica(folder, "0,1,2,3"):
            shared = chooser.threads.choose(4)
            with no_descriptor_left():
                with pytest.raises(OSError, match="Too many open files"):
                    chooser.threads.retry()
                wait_for_tries(chooser, monkeypatch, 3)
                assert chooser.plans == [shared]

        wait_for_threads(chooser, 4)


def wait_for_tries(chooser: Chooser, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Wait until it has looked for cores so often."""
    tries, retry = Semaphore(0), chooser.threads.retry

    def counted() -> None:
        tries.release()
        retry()

    monkeypatch.setattr(chooser.threads, "retry", counted)
    assert all(tries.acquire(timeout=HANG_S) for _ in range(count))


def test_replicas_in_a_container_share_its_quota(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_threads, "RETRY_S", 0.001)
    host = HostCores(allowed=frozenset(range(8)), num_online=8, siblings={}, quota=4.0)
    with Chooser(folder, host=host) as chooser:
        assert chooser.threads.choose(None).num_threads == 4

        with other_replica(folder, "0"):
            wait_for_threads(chooser, 2)
        wait_for_threads(chooser, 4)

    assert all("the cgroup grants" in plan.reason and not plan.cpus for plan in chooser.plans)


def wait_for_threads(chooser: Chooser, count: int) -> None:
    end = time.monotonic() + HANG_S
    while chooser.threads.plan.num_threads != count:
        assert time.monotonic() < end, chooser.threads.plan
        time.sleep(0.001)


def test_a_replica_does_not_take_fewer_cores_than_it_has_threads(folder: Path) -> None:
    with other_replica(folder, "0,1,2"), Chooser(folder) as chooser:
        with other_replica(folder, "3"):
            # A third of four cores is one; what it wants, and shall keep, is set higher here.
            chooser.threads.choose(4)
        chooser.threads.plan = ThreadPlan(num_threads=2, reason="fair")
        chooser.threads.retry()

        assert chooser.threads.plan.num_threads == 2
        assert CoreLocks(folder).take([3], 1) == [3]


@pytest.mark.parametrize(
    ("rank", "threads"), [(0, 2), (1, 1), (2, 1)], ids=["first", "second", "last"]
)
def test_ranks_share_the_threads_of_their_replica(folder: Path, rank: int, threads: int) -> None:
    with Chooser(folder, pin=Pin.OFF) as chooser:
        assert chooser.threads.choose(4, rank=rank, num_ranks=3).num_threads == threads
    with Chooser(folder, pin=Pin.OFF, num_threads=4) as chooser:
        assert chooser.threads.choose(None, rank=rank, num_ranks=3).num_threads == threads


def test_ranks_of_a_container_with_cpus_of_its_own_get_some_each(folder: Path) -> None:
    host = HostCores(allowed=frozenset(range(4)), num_online=8, siblings={}, is_container=True)
    with Chooser(folder, host=host) as chooser, other_replica(folder, "0,1"):
        # A replica of one rank with two of the four would not know which ones others take.
        assert chooser.threads.choose(None, rank=1, num_ranks=2).cpus == (2, 3)


def test_more_ranks_than_cores_compute_anywhere(folder: Path) -> None:
    with Chooser(folder) as chooser:
        plan = chooser.threads.choose(4, rank=4, num_ranks=5)

    assert (plan.num_threads, plan.cpus) == (1, ())
    assert "only 4 cores" in plan.reason


def test_the_environment_says_how_many_and_where() -> None:
    found = read_thread_settings(FOUR, {"TANDEM_THREADS": "3", "TANDEM_PIN": "on"})

    assert found == ThreadSettings(num_threads=3, pin=Pin.ON)
    assert read_thread_settings(FOUR, {}) == ThreadSettings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TANDEM_THREADS", "two", r"TANDEM_THREADS is 'two'; it can be 1 to 4, .* unset it"),
        ("TANDEM_THREADS", "0", r"TANDEM_THREADS is '0'; it can be 1 to 4"),
        ("TANDEM_THREADS", "5", r"TANDEM_THREADS is '5'; it can be 1 to 4"),
        ("TANDEM_PIN", "yes", r"TANDEM_PIN is 'yes'; it can be auto, on, off, or unset"),
    ],
)
def test_a_wrong_variable_is_refused_with_what_it_can_be(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_thread_settings(FOUR, {name: value})


def test_the_cpu_computes_with_the_threads_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native_kernels()
    monkeypatch.setenv("TANDEM_THREADS", "1")
    monkeypatch.setenv("TANDEM_PIN", "off")
    monkeypatch.delenv("TANDEM_KERNELS", raising=False)

    words = CpuRuntime().set_num_threads(2)

    assert words == "Compute threads: 1, not pinned: TANDEM_PIN is 'off'"
