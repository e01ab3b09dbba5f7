"""The processes of ranks, as the kernel tells them."""

import os
from pathlib import Path


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
