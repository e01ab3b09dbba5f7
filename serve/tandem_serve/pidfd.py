"""What the kernel says about the end of a process that is not a child of this one."""

import fcntl
import struct
import time
from typing import Final

_INFO: Final = struct.Struct("=2Q11Ii")
"""The first version of `struct pidfd_info` (linux/pidfd.h); the last field is the status."""
_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_HAS_STATUS: Final = 1 << 3
_POLL_S: Final = 0.01


def exit_signal(pidfd: int, *, timeout_s: float) -> int | None:
    """The signal that has ended a process; 0: it ended by itself; None: the kernel does not say.

    Linux says it from 6.15 on, and as soon as the parent of the process has asked for its status.

    Args:
        pidfd: Of a process that has ended; opened before it did.
        timeout_s: Longest time to wait for the parent.
    """
    deadline = time.monotonic() + timeout_s
    while (status := _status(pidfd)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)
    return status & 0x7F


def _status(pidfd: int) -> int | None:
    """Its status as wait(2) gives it, as far as the kernel knows."""
    asked = bytearray(_INFO.pack(_HAS_STATUS, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(asked)
    return status if mask & _HAS_STATUS else None
