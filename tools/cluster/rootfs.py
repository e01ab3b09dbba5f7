"""The machine's root: the host's files and the Debian packages, without a write to the host.

- `/etc`, `/usr`, `/var` (and `/bin`, `/sbin`, `/lib*` where they are no links) are overlays: the
  unpacked packages above the host's own, writes go to memory.
- Every other folder of `/` is the host's, read-only. No overlay there: an overlay keeps showing
  the old file when an editor replaces it below, and these folders hold code under development.
- `/run`, `/dev/shm`, `/proc`, `/sys` are the machine's own. `/tmp` is the host's, read-only, since
  a checkout may lie in it; programs are told to use `TMPDIR`.
"""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools.cluster import kernel
from tools.cluster.cgroups import Hierarchy, mount_view
from tools.cluster.errors import ClusterError
from tools.cluster.state import Files, Mount, Order

NODE: Final = "node0"
TEMPORARY: Final = Path("/run/tmp")

_OVERLAID: Final = ("etc", "usr", "var", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OWN: Final = ("dev", "proc", "run", "sys", "lost+found")


def enter(order: Order, hierarchies: Iterable[Hierarchy]) -> None:
    """Put the root together and make it this process's; the namespaces must be new ones.

    Raises:
        ClusterError: a `--mount` cannot be made.
    """
    files = Files(Path(order.folder))
    root = files.root
    # What is mounted from here on is seen by this namespace alone.
    kernel.mount("none", Path("/"), flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("root", root, "tmpfs", data="mode=755")
    _show_host(root, Path(order.packages), files.data / "writes")
    _mount_kernel_views(root, hierarchies)
    _mount_own_folders(root)
    for folder in order.live:
        _show(root, Mount(folder, folder))
    _bind_data(root, files)
    for mount in order.mounts:
        _show(root, mount)
    # Pods may ask for mounts that propagate, so the root is shared, within this namespace.
    kernel.change_root(root)
    kernel.mount("none", Path("/"), flags=kernel.MS_REC | kernel.MS_SHARED)
    socket.sethostname(NODE)


def _show_host(root: Path, packages: Path, writes: Path) -> None:
    writes.mkdir(parents=True)
    kernel.mount("writes", writes, "tmpfs", data="mode=755")
    for entry in sorted(Path("/").iterdir()):
        target = root / entry.name
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
        elif entry.name in _OWN or not entry.is_dir():
            continue
        else:
            target.mkdir()
            if entry.name in _OVERLAID:
                _overlay(entry, target, packages / entry.name, writes / entry.name)
            else:
                kernel.bind(entry, target, read_only=True)


def _overlay(host: Path, target: Path, packages: Path, writes: Path) -> None:
    for kind in ("upper", "work"):
        (writes / kind).mkdir(parents=True)
    (writes / "upper").chmod(0o755)
    lower = [packages, host] if packages.is_dir() else [host]
    options = ",".join(
        (
            "lowerdir=" + ":".join(_escape(folder) for folder in lower),
            f"upperdir={_escape(writes / 'upper')}",
            f"workdir={_escape(writes / 'work')}",
        )
    )
    kernel.mount("overlay", target, "overlay", data=options)


def _escape(folder: Path) -> str:
    text = str(folder)
    for special in "\\:,":
        text = text.replace(special, "\\" + special)
    return text


def _mount_kernel_views(root: Path, hierarchies: Iterable[Hierarchy]) -> None:
    careful = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    for name in ("proc", "sys", "dev", "run"):
        (root / name).mkdir()
    kernel.mount("proc", root / "proc", "proc", careful)
    kernel.mount("sysfs", root / "sys", "sysfs", careful)
    mount_view(hierarchies, root / "sys/fs/cgroup")
    kernel.bind(Path("/dev"), root / "dev", read_only=False)


def _mount_own_folders(root: Path) -> None:
    kernel.mount("run", root / "run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
    (root / TEMPORARY.relative_to("/")).mkdir(mode=0o1777)
    kernel.mount("shm", root / "dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.mount(
        "devpts", root / "dev/pts", "devpts", data="newinstance,ptmxmode=0666,mode=0620,gid=5"
    )
    _replace(root / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {NODE}\n")
    _replace(root / "etc/hostname", NODE + "\n")


def _replace(file: Path, text: str) -> None:
    """Replace a file: it may be a link to a missing one."""
    file.unlink(missing_ok=True)
    file.write_text(text, encoding="utf-8")


def write_resolver(address: str) -> None:
    """Have the machine ask the name server at `address`."""
    _replace(Path("/etc/resolv.conf"), f"nameserver {address}\n")


def _bind_data(root: Path, files: Files) -> None:
    # The same path inside and outside, so that a path in a log can be followed from both.
    _bind(root, files.folder, str(files.folder), read_only=False)
    for source, target in (
        (files.data / "containerd", "/var/lib/containerd"),
        (files.data / "kubelet", "/var/lib/kubelet"),
        (files.logs / "pods", "/var/log/pods"),
    ):
        source.mkdir()
        _bind(root, source, target, read_only=False)


def _show(root: Path, mount: Mount) -> None:
    source = Path(mount.source)
    try:
        _bind(root, source, mount.target, read_only=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterError(
            f"{mount.source} cannot be shown at {mount.target} on the node ({reason}); name a"
            " target that the host has, or one below a folder that the host does not have"
        ) from error


def _bind(root: Path, source: Path, target: str, *, read_only: bool) -> None:
    place = root / target.lstrip("/")
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    kernel.bind(source, place, read_only=read_only)


def is_on_overlay(folder: Path) -> bool:
    """Return True when `folder` is on an overlay, on which containerd cannot put another."""
    device = f"{os.major(folder.stat().st_dev)}:{os.minor(folder.stat().st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == device:
            return after.split()[0] == "overlay"
    return False
