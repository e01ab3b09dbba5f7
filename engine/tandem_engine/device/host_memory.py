"""Main memory as the kernel tells it: of the machine, of this process's cgroup, of this process."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandem_engine.device.cgroups import groups_of

ROOT = Path("/")
V1_FILES: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""Limit and usage of a group."""
V2_FILES: Final = ("memory.max", "memory.current")


def available_memory(root: Path = ROOT) -> int:
    """Bytes that this process can still take without swapping, or being killed.

    That is the kernel's MemAvailable, or less where a cgroup (version 1 or 2) that holds this
    process has less left. A test passes another `root`.
    """
    return max(0, min([_machine_available(root), *_cgroups_available(root)]))


def resident_memory(root: Path = ROOT) -> int:
    """Bytes of main memory that this process holds."""
    pages = int((root / "proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _machine_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{root / 'proc/meminfo'} has no MemAvailable; Linux 3.14 or newer has it")


def _cgroups_available(root: Path) -> Iterator[int]:
    """What is left in each cgroup that limits this process."""
    for group in groups_of(root, "memory"):
        names = V2_FILES if group.is_v2 else V1_FILES
        left = _left(group.folder, *names)
        if left is not None:
            yield left


def _left(group: Path, limit: str, usage: str) -> int | None:
    try:
        text = (group / limit).read_text().strip()
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except FileNotFoundError:
        return None
    if text == "max":
        return None
    # File pages that nobody used lately count as usage, but the kernel drops them when in need.
    return int(text) - used + int(stat.get("inactive_file", 0))
