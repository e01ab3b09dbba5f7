"""The choice of cores: by tables, and by properties that hold for any machine."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.device.cpu.threads.cores import (
    HostCores,
    Pin,
    ThreadPlan,
    fair_threads,
    format_cpus,
    parse_cpus,
    unpinned_reason,
)
from tandem_engine.device.cpu.threads.host_cores import read_host_cores

FOUR = frozenset(range(4))


def host(
    allowed: frozenset[int] = FOUR,
    *,
    num_online: int = 8,
    pairs: bool = False,
    quota: float | None = None,
    is_container: bool = False,
) -> HostCores:
    """A machine whose CPUs are alone on their cores, or n and n + 4 are of one."""
    siblings = {cpu: frozenset({cpu % 4, cpu % 4 + 4}) for cpu in allowed} if pairs else {}
    return HostCores(
        allowed=allowed,
        num_online=num_online,
        siblings=siblings,
        quota=quota,
        is_container=is_container,
    )


@pytest.mark.parametrize(
    ("machine", "cores", "threads"),
    [
        pytest.param(host(), [0, 1, 2, 3], 4, id="a core a CPU"),
        pytest.param(host(frozenset(range(8)), pairs=True), [0, 1, 2, 3], 4, id="two CPUs a core"),
        pytest.param(host(frozenset({1, 5, 6}), pairs=True), [1, 6], 2, id="a few CPUs allowed"),
        pytest.param(host(quota=2.0), [0, 1, 2, 3], 2, id="a quota"),
        pytest.param(host(quota=2.9), [0, 1, 2, 3], 2, id="a quota with a part of a CPU"),
        pytest.param(host(quota=0.5), [0, 1, 2, 3], 1, id="half a CPU"),
        pytest.param(host(quota=64.0), [0, 1, 2, 3], 4, id="a quota beyond the CPUs"),
    ],
)
def test_there_is_one_thread_a_physical_core_that_may_be_used(
    machine: HostCores, cores: list[int], threads: int
) -> None:
    assert machine.cores == cores
    assert machine.most_threads == threads


@given(
    allowed=st.frozensets(st.integers(0, 63), min_size=1),
    per_core=st.sampled_from([1, 2, 4]),
    quota=st.none() | st.floats(0.01, 200),
)
def test_cores_are_allowed_and_no_two_share_arithmetic_units(
    allowed: frozenset[int], per_core: int, quota: float | None
) -> None:
    groups = {cpu: frozenset(range(cpu // per_core * per_core, 64)) for cpu in allowed}
    siblings = {
        cpu: frozenset(other for other in group if other // per_core == cpu // per_core)
        for cpu, group in groups.items()
    }
    machine = HostCores(allowed=allowed, num_online=64, siblings=siblings, quota=quota)

    numbers = [cpu // per_core for cpu in machine.cores]
    assert set(machine.cores) <= allowed
    assert sorted(set(numbers)) == numbers
    assert set(numbers) == {cpu // per_core for cpu in allowed}
    assert 1 <= machine.most_threads <= len(numbers)


@pytest.mark.parametrize(
    ("machine", "pin", "threads", "reason"),
    [
        pytest.param(host(), Pin.AUTO, 4, "", id="a machine of its own"),
        pytest.param(host(), Pin.OFF, 4, "TANDEM_PIN is 'off'", id="switched off"),
        pytest.param(host(), Pin.AUTO, 5, "only 4 cores", id="too many threads"),
        pytest.param(host(), Pin.ON, 5, "only 4 cores", id="too many threads, all the same"),
        pytest.param(host(quota=2), Pin.AUTO, 2, "time of 2 CPUs on any of 4", id="a quota"),
        pytest.param(host(quota=2), Pin.ON, 2, "", id="a quota, all the same"),
        pytest.param(host(quota=4), Pin.AUTO, 4, "", id="a quota of all CPUs"),
        pytest.param(
            host(is_container=True, num_online=4), Pin.AUTO, 4, "does not see", id="a container"
        ),
        pytest.param(
            host(is_container=True), Pin.AUTO, 4, "", id="a container with CPUs of its own"
        ),
        pytest.param(
            host(is_container=True), Pin.AUTO, 3, "another one", id="some CPUs of a container's"
        ),
    ],
)
def test_threads_are_pinned_only_to_what_is_the_process_s_own(
    machine: HostCores, pin: Pin, threads: int, reason: str
) -> None:
    found = unpinned_reason(machine, pin, threads)

    assert reason in found
    assert bool(reason) == bool(found)


@given(expected=st.integers(1, 64), num_cores=st.integers(1, 64), num_replicas=st.integers(0, 99))
def test_shares_of_all_replicas_fit_the_cores_or_are_single_threads(
    expected: int, num_cores: int, num_replicas: int
) -> None:
    threads = fair_threads(expected, num_cores=num_cores, num_replicas=num_replicas)

    assert 1 <= threads <= expected
    assert threads == 1 or threads * num_replicas <= num_cores


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_lists_of_cpus_can_be_written_and_read(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(sorted(cpus))) == cpus


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            ThreadPlan(num_threads=3, cpus=(4, 2, 3)),
            "Compute threads: 3, pinned to CPUs 2-4",
        ),
        (
            ThreadPlan(num_threads=2, cpus=(0, 2), own=True),
            "Compute threads: 2, pinned to CPUs 0,2, one each",
        ),
        (
            ThreadPlan(num_threads=1, cpus=(7,), own=True),
            "Compute threads: 1, pinned to CPU 7",
        ),
        (
            ThreadPlan(num_threads=2, reason="it is so"),
            "Compute threads: 2, not pinned: it is so",
        ),
    ],
)
def test_a_plan_says_how_many_threads_and_where_or_why_not(plan: ThreadPlan, words: str) -> None:
    assert plan.describe() == words


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


CPUS = {
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,2\n",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,3\n",
    "sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "0,2\n",
}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="no cgroups"),
        pytest.param(
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"},
            None,
            id="version 2, no limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            },
            1.5,
            id="version 2, a limit further up",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/of/the/host\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
            0.5,
            id="version 2 in a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            2.0,
            id="version 1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            None,
            id="version 1, no limit",
        ),
    ],
)
def test_the_kernel_s_files_tell_cores_and_quota(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    root = write(tmp_path, CPUS | files)

    found = read_host_cores(root, allowed=frozenset({0, 1, 2}), environment={})

    assert found.cores == [0, 1]
    assert found.num_online == 4
    assert found.quota == quota
    assert not found.is_container


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({".dockerenv": ""}, {}),
        ({"run/.containerenv": ""}, {}),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
    ],
)
def test_a_container_is_known_by_its_marks(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str]
) -> None:
    root = write(tmp_path, files)

    found = read_host_cores(root, allowed=frozenset({0}), environment=environment)

    assert found.is_container


def test_this_machine_has_a_core_to_compute_on() -> None:
    found = read_host_cores()

    assert set(found.cores) <= found.allowed
    assert found.most_threads >= 1
