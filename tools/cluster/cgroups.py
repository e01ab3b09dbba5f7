"""A cgroup of the cluster's own in every hierarchy, below the caller's.

Everything in the sandbox nests below it (`kubepods` too), so two clusters never share a group
and removing one tree removes all.

Version 1 is what this was run on. Version 2 follows the rules of the kernel's documentation
(cgroup-v2.rst, "No Internal Process Constraint") and could not be tried.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.cluster import kernel
from tools.cluster.errors import Unavailable

_NEEDED_V2: Final = frozenset({"cpu", "memory", "pids"})
_ENABLED_V2: Final = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
LEAF: Final = "machine"
"""Group of the parts themselves in version 2, next to `kubepods`."""
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of cgroups and the caller's place in it."""

    version: int
    mounted_at: Path
    options: str
    """Name of this v1 hierarchy: `cpu,cpuacct`, or `name=systemd`."""
    own: Path
    """The caller's own cgroup, as a folder."""


def find_hierarchies() -> list[Hierarchy]:
    """The hierarchies of this machine: all of version 1, else the one of version 2.

    Raises:
        Unavailable: no hierarchy is mounted.
    """
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    groups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    hierarchies = parse_hierarchies(mounts, groups)
    first = [hierarchy for hierarchy in hierarchies if hierarchy.version == 1] or hierarchies
    if not first:
        raise Unavailable("no cgroup hierarchy is mounted below /sys/fs/cgroup")
    return first


def parse_hierarchies(mountinfo: str, groups: str) -> list[Hierarchy]:
    """Read /proc/self/mountinfo and /proc/self/cgroup; duplicates of a mount are skipped."""
    paths = dict(line.split(":", 2)[1:] for line in groups.splitlines())
    by_options: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted_at = before.split()[3:5]
        kind, _, super_options = after.split(maxsplit=2)
        if kind == "cgroup2":
            options = ""
        elif kind == "cgroup":
            options = next((each for each in paths if _is_of(each, super_options)), "")
        else:
            continue
        if options in by_options or options not in paths:
            continue
        below = paths[options].removeprefix("" if root == "/" else root).lstrip("/")
        by_options[options] = Hierarchy(
            version=2 if kind == "cgroup2" else 1,
            mounted_at=Path(mounted_at),
            options=options,
            own=Path(mounted_at) / below,
        )
    return list(by_options.values())


def _is_of(controllers: str, super_options: str) -> bool:
    return bool(controllers) and set(controllers.split(",")) <= set(super_options.split(","))


def plan(hierarchies: Iterable[Hierarchy], name: str) -> tuple[Path, ...]:
    """The folders that `create` will make."""
    return tuple(_parent(hierarchy) / name for hierarchy in hierarchies)


def _parent(hierarchy: Hierarchy) -> Path:
    if hierarchy.version == 1:
        return hierarchy.own
    # A v2 group with processes in it hands no controllers on: take the nearest that does.
    folder = hierarchy.own
    while True:
        with suppress(OSError):
            if set((folder / "cgroup.subtree_control").read_text().split()) >= _NEEDED_V2:
                return folder
        if folder == hierarchy.mounted_at:
            expected = ", ".join(sorted(_NEEDED_V2))
            raise Unavailable(
                f"no cgroup above {hierarchy.own} hands on the controllers {expected}"
            )
        folder = folder.parent


def create(folders: Iterable[Path]) -> None:
    """Make the cluster's cgroups."""
    for folder in folders:
        folder.mkdir()
        # A new v1 cpuset is empty, and admits no process.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (folder / setting).exists() and not (folder / "cgroup.controllers").exists():
                (folder / setting).write_text((folder.parent / setting).read_text())


def join(folders: Iterable[Path]) -> None:
    """Move this process into the cluster's cgroups."""
    for folder in folders:
        (folder / "cgroup.procs").write_text("0")


def mount_view(hierarchies: Iterable[Hierarchy], target: Path) -> None:
    """Mount the hierarchies at `target` as this cgroup namespace sees them."""
    ones = list(hierarchies)
    if ones[0].version == 2:  # noqa: PLR2004
        kernel.mount("cgroup2", target, "cgroup2")
        _free_the_root(target)
        return
    kernel.mount("cgroup", target, "tmpfs", data="mode=755")
    for hierarchy in ones:
        folder = target / hierarchy.options.removeprefix("name=")
        folder.mkdir()
        kernel.mount("cgroup", folder, "cgroup", data=_mount_options(hierarchy.options))
        controllers = hierarchy.options.split(",")
        for controller in controllers if len(controllers) > 1 else ():
            (target / controller).symlink_to(folder.name)


def _mount_options(options: str) -> str:
    return f"none,{options}" if options.startswith("name=") else options


def _free_the_root(root: Path) -> None:
    """Put this process into a leaf, so that the root can hand controllers to `kubepods`."""
    (root / LEAF).mkdir()
    (root / LEAF / "cgroup.procs").write_text("0")
    available = (root / "cgroup.controllers").read_text().split()
    for controller in _ENABLED_V2:
        if controller in available:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def remove(folders: Iterable[Path], *, timeout_s: float = 10.0) -> list[Path]:
    """Remove the trees at `folders`, which hold no process any more; return what is left."""
    deadline = time.monotonic() + timeout_s
    left = [folder for folder in folders if folder.is_dir()]
    while left:
        for folder in left:
            _remove_tree(folder)
        left = [folder for folder in left if folder.is_dir()]
        # The kernel lets go of a group a moment after its last process is reaped.
        if time.monotonic() > deadline:
            break
        if left:
            time.sleep(_POLL_S)
    return left


def _remove_tree(folder: Path) -> None:
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()
