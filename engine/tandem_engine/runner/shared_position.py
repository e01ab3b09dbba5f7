"""A number in shared memory that one process stores and others wait for."""

import ctypes
import os
import platform
from threading import Lock
from typing import Final

POSITION_BYTES: Final = 16
"""Bytes that one takes up: the number, and the id of the process that stores it."""

_SYS_FUTEX: Final = 202 if platform.machine() == "x86_64" else 98
_WAIT: Final = 0
_WAKE: Final = 1
_EVERYONE: Final = 0x7FFFFFFF
_LOW: Final = 0xFFFFFFFF


_Timespec: Final = ctypes.c_long * 2
"""Seconds and nanoseconds."""
_ARGUMENTS: Final = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
)
# Waking does not block, so Python's lock is kept: who gives it away may wait 5 ms to have it back.
_wake: Final = ctypes.PyDLL(None).syscall
_wake.argtypes = _ARGUMENTS
_wait: Final = ctypes.CDLL(None).syscall
_wait.argtypes = _ARGUMENTS


class SharedPosition:
    """A number of 64 bits that only grows; less than 2**32 at once.

    Args:
        memory: Shared, and writable; it must stay mapped.
        at: Where it stands, a multiple of 8.
    """

    def __init__(self, memory: memoryview, at: int) -> None:
        self._position = memory[at : at + 8].cast("Q")
        self._process = memory[at + 8 : at + POSITION_BYTES].cast("Q")
        # The low half: processors that Tandem runs on are little-endian.
        self._address = ctypes.addressof(ctypes.c_uint32.from_buffer(memory, at))
        # Held, but for the moment of a barrier.
        self._fence = Lock()
        self._fence.acquire()

    @property
    def process(self) -> int:
        """Id of the process that stores it; 0: there is none yet."""
        return self._process[0]

    def sign(self) -> None:
        """Be the process that stores it."""
        self._process[0] = os.getpid()

    def load(self) -> int:
        """Return the position; all that was written before it was stored is seen from now on."""
        position = self._position[0]
        self._order()
        return position

    def store(self, position: int) -> None:
        """Store a position, behind all that was written before, and wake those who wait for it."""
        self._order()
        self._position[0] = position
        _wake(_SYS_FUTEX, self._address, _WAKE, _EVERYONE, None)

    def wait(self, position: int, timeout_s: float) -> None:
        """Sleep while the position is this one, for so long at most; it may also end early."""
        whole = int(timeout_s)
        timeout = _Timespec(whole, int((timeout_s - whole) * 1e9))
        _wait(_SYS_FUTEX, self._address, _WAIT, position & _LOW, timeout)

    def release(self) -> None:
        """Let go of the memory; nothing else may be called then."""
        self._position.release()
        self._process.release()

    def _order(self) -> None:
        """Keep reads and writes on their side of this point; Arm's processors move them.

        What stands before a release stays before it, what stands behind an acquire stays behind
        it, and the two of one lock stay in order.
        """
        self._fence.release()
        self._fence.acquire()
