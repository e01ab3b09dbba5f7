"""The processor as the kernel tells it: logical CPUs, physical cores, the cgroup's quota."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tandem_engine.device.cpu.cgroups import Group, groups_of
from tandem_engine.device.cpu.memory import ROOT
from tandem_engine.device.cpu.threads.cores import HostCores, parse_cpus

CONTAINER_FILES: Final = (".dockerenv", "run/.containerenv")
CONTAINER_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"


def read_host_cores(
    root: Path = ROOT,
    *,
    allowed: frozenset[int] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> HostCores:
    """Read what this process can see of the processor.

    Args:
        root: Where /proc and /sys are; a test passes another one.
        allowed: Logical CPUs that it may run on; None: asks the kernel.
        environment: Variables; those of Kubernetes tell a pod.
    """
    cpus = allowed or frozenset(os.sched_getaffinity(0))
    return HostCores(
        allowed=cpus,
        num_online=_num_online(root, len(cpus)),
        siblings={cpu: _siblings(root, cpu) for cpu in cpus},
        quota=min(_quotas(root), default=None),
        is_container=CONTAINER_VARIABLE in environment
        or any((root / name).exists() for name in CONTAINER_FILES),
    )


def _num_online(root: Path, at_least: int) -> int:
    return max(at_least, len(_cpus_of(root / "sys/devices/system/cpu/online")))


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return _cpus_of(folder / "thread_siblings_list") | {cpu}


def _cpus_of(path: Path) -> frozenset[int]:
    """The list in a file; empty where there is none, or none that can be read."""
    try:
        return parse_cpus(path.read_text())
    except (OSError, ValueError):
        return frozenset()


def _quotas(root: Path) -> Iterator[float]:
    for group in groups_of(root, "cpu"):
        quota = _quota_v2(group) if group.is_v2 else _quota_v1(group)
        if quota is not None:
            yield quota


def _quota_v2(group: Group) -> float | None:
    try:
        quota, period = (group.folder / "cpu.max").read_text().split()
    except OSError:
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Group) -> float | None:
    try:
        quota = int((group.folder / "cpu.cfs_quota_us").read_text())
        period = int((group.folder / "cpu.cfs_period_us").read_text())
    except OSError:
        return None
    return None if quota < 0 else quota / period
