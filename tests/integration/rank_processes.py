"""The processes of ranks, as the kernel tells them."""

import os
from pathlib import Path

from tandem_engine.device.cpu.memory import resident_memory


def children(process: int | None = None) -> frozenset[int]:
    """Ranks that a process has started, this one by default, and that have not been reaped."""
    parent = process or os.getpid()
    found = set()
    for task in Path(f"/proc/{parent}/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:
            continue  # the thread has ended meanwhile
        found |= {int(pid) for pid in pids if is_rank(int(pid))}
    return frozenset(found)


def is_rank(pid: int) -> bool:
    """True if it is a process that multiprocessing has spawned, and not its tracker."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"spawn_main" in command


def has_ended(pid: int) -> bool:
    """True if there is no such process, not even one to be reaped."""
    return not Path(f"/proc/{pid}").exists()


def memory_for_two() -> int:
    """Memory of a replica of two ranks: 3 GiB beside what this process holds of other tests."""
    return 2 * resident_memory() + (3 << 30)


def segments_of(pid: int) -> frozenset[int]:
    """Inodes of the segments that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return frozenset(int(line.split()[4]) for line in lines if "memfd:tandem-segment" in line)


def in_dev_shm(pid: int) -> list[str]:
    """Files of /dev/shm that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if " /dev/shm/" in line]


def holders_of(segments: frozenset[int]) -> set[int]:
    """Processes that have any of these segments mapped."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if segments & segments_of(int(folder.name)):
                found.add(int(folder.name))
        except OSError:
            continue  # of another user, or it has ended meanwhile
    return found
