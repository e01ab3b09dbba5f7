"""Memory that processes of one host share, without a name that could outlive them.

It is an anonymous file in memory: a process that knows the address opens it through the creator's
entry in /proc, and the kernel frees it with the last process that has it mapped or open. It counts
as shared memory of the container, and not against the size of /dev/shm.
"""

import ctypes
import fcntl
import mmap
import os
import secrets
import stat
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple, Self

from tandem_engine.parallel.errors import SegmentError

_MAGIC: Final = b"tandem segment 1"
_NONCE_BYTES: Final = 16
_HEADER_BYTES: Final = 4096
"""A page, so that what follows begins one, too."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A process that shortened the file would kill the others with SIGBUS."""


class SegmentAddress(NamedTuple):
    """Tells another process of this host where a segment is; travels as JSON, too."""

    pid: int
    """The process that created it."""
    fd: int
    """Descriptor of that process."""
    size: int
    """Bytes of the buffer."""
    nonce: str
    """Random; the segment holds the same, so that a descriptor used again is noticed."""


class SharedSegment:
    """A segment mapped into this process: zeros at first. See `create` and `attach`.

    The creator keeps it open until all others have attached; from then on it lives as long as any
    of them has it.
    """

    def __init__(self, address: SegmentAddress, mapped: mmap.mmap, fd: int | None) -> None:
        self.address = address
        self._mapped = mapped
        self._fd = fd
        self._buffer = memoryview(mapped)[_HEADER_BYTES:]

    @classmethod
    def create(cls, size: int) -> Self:
        """Make a segment of `size` bytes.

        Raises:
            SegmentError: The size is not positive, or the kernel has no memory or file for it.
        """
        if size <= 0:
            raise SegmentError(f"A segment of {size} B cannot be; ask for 1 B or more.")
        nonce = secrets.token_hex(_NONCE_BYTES)
        try:
            fd = os.memfd_create("tandem-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SegmentError(f"A segment of {size} B cannot be made: {error}.") from error
        try:
            os.ftruncate(fd, _HEADER_BYTES + size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            mapped = mmap.mmap(fd, _HEADER_BYTES + size)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise SegmentError(f"A segment of {size} B cannot be made: {error}.") from error
        mapped[: len(_header(nonce))] = _header(nonce)
        return cls(SegmentAddress(os.getpid(), fd, size, nonce), mapped, fd)

    @classmethod
    def attach(cls, address: SegmentAddress) -> Self:
        """Map a segment that another process of this host has created, and still holds.

        Raises:
            SegmentError: There is none at the address, or it is another one.
        """
        fd = _open(address)
        try:
            if os.fstat(fd).st_size != _HEADER_BYTES + address.size:
                raise _not_there(address, "there is another file")
            mapped = mmap.mmap(fd, _HEADER_BYTES + address.size)
        except OSError as error:
            raise _not_there(address, str(error)) from error
        finally:
            os.close(fd)
        header = _header(address.nonce)
        if mapped[: len(header)] != header:
            mapped.close()
            raise _not_there(address, "there is another segment")
        return cls(address, mapped, None)

    @property
    def buffer(self) -> memoryview:
        """All of its bytes, writable. Views of it must be released before `close`."""
        return self._buffer

    @property
    def pointer(self) -> int:
        """Address of the first byte in this process, until `close`; a page begins there."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._mapped, _HEADER_BYTES))

    def close(self) -> None:
        """Unmap it. May be called again.

        Raises:
            BufferError: A view of the buffer is in use.
        """
        self._buffer.release()
        self._mapped.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Of one whose constructor or whose close failed, there may be less.
        with suppress(AttributeError, BufferError):
            self.close()


def _header(nonce: str) -> bytes:
    return _MAGIC + bytes.fromhex(nonce)


def _open(address: SegmentAddress) -> int:
    path = f"/proc/{address.pid}/fd/{address.fd}"
    try:
        # To open a pipe or a terminal that has got the number by now may block, or do something.
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - the same name as below
            raise _not_there(address, "there is no file in memory")
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _not_there(address, error.strerror or str(error)) from error


def _not_there(address: SegmentAddress, reason: str) -> SegmentError:
    return SegmentError(
        f"Segment {address.fd} of process {address.pid} cannot be attached: {reason}. Its creator "
        "must keep it open until all ranks have joined, and run on this host."
    )
