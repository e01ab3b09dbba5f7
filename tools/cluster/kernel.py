"""The kernel's own calls for namespaces and mounts, which Python 3.11 does not have."""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

# <linux/sched.h>
NEW_MOUNTS: Final = 0x00020000
NEW_CGROUPS: Final = 0x02000000
NEW_HOSTNAME: Final = 0x04000000
NEW_IPC: Final = 0x08000000
NEW_PIDS: Final = 0x20000000
NEW_NETWORK: Final = 0x40000000

# <sys/mount.h>
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MS_SHARED: Final = 0x100000
_MNT_DETACH: Final = 0x2

# <sys/prctl.h>
_PR_SET_PDEATHSIG: Final = 1

# The number is the same on every architecture; glibc has a name for it since 2.36 only.
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 0x1

_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount something, as the system call does; the folder `target` must be there."""
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(result, f"mount {source} at {target}")


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    """Show the tree at `source`, with all that is mounted in it, at `target` too."""
    mount(str(source), target, flags=MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def make_read_only(target: Path) -> None:
    """Refuse writes to the mount at `target` and to all mounts below it (Linux 5.12)."""
    # struct mount_attr: to set, to clear, propagation, user namespace.
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(target),
        _AT_RECURSIVE,
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(result, f"make {target} read-only")


def unmount(target: Path) -> None:
    """Take the mount at `target` out of this namespace, even while a process uses it."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount {target}")


def change_root(root: Path) -> None:
    """Make the mount at `root` this mount namespace's root, and let go of the old one."""
    os.chdir(root)
    # With both names the same, the old root ends on top of the new one: pivot_root(2), NOTES.
    _check(_libc.pivot_root(b".", b"."), f"pivot_root to {root}")
    unmount(Path())
    os.chdir("/")


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name for new ones."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def set_namespace(descriptor: int, kind: int) -> None:
    """Enter the namespace that `descriptor` refers to."""
    _check(_libc.setns(descriptor, kind), "setns")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process `signal_number` when its parent ends, however it does."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
