"""The control groups that hold this process, of version 1 or 2, from the innermost outwards."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """One level of a hierarchy; a limit may stand on any."""

    folder: Path
    is_v2: bool


def groups_of(root: Path, controller: str) -> Iterator[Group]:
    """The groups whose `controller` (memory, cpu) counts this process; none: nothing limits it."""
    for top, path, is_v2 in _mounts(root, controller):
        group = top / path
        # In a container the path may be that of the host, and lie outside of what is mounted.
        levels = [group, *group.parents] if group.is_dir() else [top]
        for level in levels:
            if not level.is_relative_to(top):
                break
            yield Group(level, is_v2)


def _mounts(root: Path, controller: str) -> Iterator[tuple[Path, str, bool]]:
    """Mount point, path within it, and whether that is version 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield mount, path.lstrip("/"), True
        elif controller in controllers.split(","):
            yield mount / controller, path.lstrip("/"), False
