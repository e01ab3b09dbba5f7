"""Main memory as the kernel tells it: of the machine, of this process's cgroup, of this process."""

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem_engine.device.cpu.cgroups import groups_of

ROOT = Path("/")
V1_FILES: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""Limit and usage of a group."""
V2_FILES: Final = ("memory.max", "memory.current")
_RESET_PEAK: Final = "5"
_POLL_S: Final = 0.001


def available_memory(root: Path = ROOT) -> int:
    """Bytes that this process can still take without swapping, or being killed.

    The kernel's MemAvailable, or less where a cgroup (version 1 or 2) of this process has less
    left. A test passes another `root`.
    """
    return max(0, min([_machine_available(root), *_cgroups_available(root)]))


def resident_memory(root: Path = ROOT) -> int:
    """Bytes of main memory that this process holds."""
    pages = int((root / "proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_memory(work: Callable[[], object], root: Path = ROOT) -> int:
    """Bytes of main memory that this process holds at most while `work` runs.

    The kernel's high-water mark, reset before, counts all pages that are touched, by torch, by
    native kernels and by libraries alike, which no allocator's statistics do. It is exact but for
    pages that other threads take meanwhile. Where the kernel does not let it be reset, the
    resident memory is polled every millisecond.

    Memory that was freed and that the C library keeps goes back first: taken again by `work`, it
    would hide what `work` needs.
    """
    give_back_free_memory()
    if not reset_peak(root):
        return _sampled_peak(work)
    work()
    return max(peak_since_reset(root), resident_memory(root))


def give_back_free_memory() -> None:
    """Return what was freed to the kernel, where the C library can (glibc)."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak(root: Path = ROOT) -> bool:
    """Reset the high-water mark to what is resident; return False if that is not possible."""
    try:
        (root / "proc/self/clear_refs").write_text(_RESET_PEAK)
        return peak_since_reset(root) > 0
    except OSError:
        return False


def peak_since_reset(root: Path = ROOT) -> int:
    """Bytes of main memory that this process held at most since `reset_peak`."""
    for line in (root / "proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "VmHWM":
            return int(value.split()[0]) * 1024
    return 0


def _sampled_peak(work: Callable[[], object]) -> int:
    peak = resident_memory()
    is_done = threading.Event()

    def poll() -> None:
        nonlocal peak
        while not is_done.wait(_POLL_S):
            peak = max(peak, resident_memory())

    thread = threading.Thread(target=poll, name="tandem-peak", daemon=True)
    thread.start()
    try:
        work()
    finally:
        peak = max(peak, resident_memory())
        is_done.set()
        thread.join()
    return peak


def _machine_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{root / 'proc/meminfo'} has no MemAvailable; Linux 3.14 or newer has it")


def _cgroups_available(root: Path) -> Iterator[int]:
    """Bytes left in each cgroup that limits this process."""
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
    # File pages that were not used lately count as usage, but the kernel drops them when in need.
    return int(text) - used + int(stat.get("inactive_file", 0))
