"""Memory in huge pages, for what is read from front to back in every step.

A huge page at the first touch makes whoever touches it wait until the kernel has put 2 MB of free
memory together: 5 ms where it is in small pieces, which for weights of 1 GB was most of the time to
load them. So an engine writes its weights into small pages, and joins these later, beside the work.
"""

import ctypes
import errno
import math
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

HUGE_PAGE: Final = 2 << 20
CHUNK_BYTES: Final = 32 << 20
"""Tensors come out of chunks of this size, so that small ones share huge pages."""
ALIGNMENT: Final = 64
"""A cache line, and the widest vector."""
_MADV_COLLAPSE: Final = 25
"""Linux 6.1; Python has no name for it."""
_NOT_NOW: Final = (0, errno.ENOMEM, errno.EAGAIN, errno.EBUSY)
"""Answers of a kernel that can do it, if not at once."""


class HugePages:
    """Hands out tensors side by side; their memory goes back when all of a chunk are gone.

    Reading 2 MB pages is up to a tenth faster than reading 4 KB pages, because the processor looks
    up fewer addresses and fetches ahead further.

    Args:
        later: Begin with small pages, where the kernel can join them; `collapse` does.
    """

    def __init__(self, *, later: bool = False) -> None:
        self._later = later
        self._chunk: Tensor | None = None
        self._taken = 0
        self._small: list[_Mapped] = []

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros, [count]."""
        size = count * dtype.itemsize
        chunk = self._chunk
        if chunk is None or self._taken + size > len(chunk):
            chunk = self._chunk = self._map(max(size, CHUNK_BYTES))
            self._taken = 0
        begin = self._taken
        self._taken = -(-(begin + size) // ALIGNMENT) * ALIGNMENT
        return chunk[begin : begin + size].view(dtype)

    def collapse(self) -> None:
        """Join the pages of what was handed out and written so far; any thread may do it.

        A huge page takes milliseconds; all but a moment of them others read and write what is in
        it. One that the kernel cannot make now is left to its own daemon.
        """
        while self._small:
            self._small.pop(0).collapse()

    def _map(self, size: int) -> Tensor:
        if not (self._later and can_collapse()):
            return _bytes_of(_map(size, in_huge_pages=True), size)
        mapping = _map(size, in_huge_pages=False)
        chunk = _bytes_of(mapping, size)
        self._small.append(_Mapped(weakref.ref(mapping), chunk.data_ptr(), size))
        return chunk


class _Mapped(NamedTuple):
    """Small pages that are to be joined, unless they are given back before."""

    mapping: weakref.ref[mmap.mmap]
    address: int
    """Of the first huge page."""
    size: int

    def collapse(self) -> None:
        held = self.mapping()  # so that it is not given back meanwhile
        if held is None:
            return
        for at in range(self.address, self.address + self.size, HUGE_PAGE):
            _advise(at, HUGE_PAGE, _MADV_COLLAPSE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            _advise(self.address, self.size, mmap.MADV_HUGEPAGE)


def zeros_in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on its own; it takes up memory as it is written, 2 MB at a time."""
    count = math.prod(shape)
    size = max(1, count) * dtype.itemsize
    return _bytes_of(_map(size, in_huge_pages=True), size).view(dtype)[:count].view(*shape)


@cache
def can_collapse() -> bool:
    """Whether this kernel joins pages when it is asked to; tried out once."""
    mapping = _map(HUGE_PAGE, in_huge_pages=False)
    page = _bytes_of(mapping, HUGE_PAGE)
    page[0] = 1  # there is nothing to join where nothing is written
    return _advise(page.data_ptr(), HUGE_PAGE, _MADV_COLLAPSE) in _NOT_NOW


def _advise(address: int, size: int, advice: int) -> int:
    """The error's number, or 0. Unlike with Python's own, other threads go on meanwhile."""
    failed = _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice))
    return ctypes.get_errno() if failed else 0


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _map(size: int, *, in_huge_pages: bool) -> mmap.mmap:
    """Memory with room for `size` bytes that begin at a huge page."""
    # Python's usual is shared memory, which has no huge pages.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapping = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE, flags=private)
    if in_huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages; it is advice
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _bytes_of(mapping: mmap.mmap, size: int) -> Tensor:
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_PAGE
    return whole[begin : begin + size]
