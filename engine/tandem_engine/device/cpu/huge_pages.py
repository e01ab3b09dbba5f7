"""Memory in huge pages, for weights, which every step reads from front to back.

The first touch of a huge page makes its thread wait until the kernel has put 2 MB of free
memory together: nothing where there are such pieces, and 5 ms where memory is in small ones, which
for weights of 1 GB was most of the time to load them. So an engine waits for it within a
budget, writes the rest of its weights into small pages, and collapses these while it is idle
(`idle_work`).
"""

import ctypes
import errno
import math
import mmap
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor

HUGE_PAGE: Final = 2 << 20
CHUNK_BYTES: Final = 32 << 20
"""Tensors come out of chunks of this size, so that small ones share huge pages."""
ALIGNMENT: Final = 64
"""A cache line, and the widest vector."""
_MADV_COLLAPSE: Final = 25
"""Linux 6.1; Python has no name for it."""
BUDGET_S: Final = 1.0
"""Time that huge pages may add to loading a model, beyond that of small ones."""
_SAMPLES: Final = 3
"""Huge pages filled with small ones, to know what those take; the quickest counts."""
_NOT_NOW: Final = (0, errno.ENOMEM, errno.EAGAIN, errno.EBUSY)
"""Answers of a kernel that can do it, if not at once."""


class HugePages:
    """Hands out tensors side by side; their memory goes back when all of a chunk are gone.

    Reading 2 MB pages is up to a tenth faster than reading 4 KB pages, because the processor looks
    up fewer addresses and fetches ahead further.

    Args:
        budget: None: all pages are huge at the first touch, whatever it takes. Else they are
            until it is spent, and small from then on, where the kernel can collapse them later
            (`collapse_next`).
    """

    def __init__(self, *, budget: "TouchBudget | None" = None) -> None:
        self._budget = budget
        self._chunk: Tensor | None = None
        self._taken = 0
        self._made = 0
        """Bytes of the chunk whose pages were made: a whole number of them."""
        self._small: list[_Mapped] = []

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros, [count]."""
        size = count * dtype.itemsize
        chunk = self._chunk
        if chunk is None or self._taken + size > len(chunk):
            chunk = self._chunk = self._map(max(size, CHUNK_BYTES))
            self._taken = self._made = 0
        begin = self._taken
        self._taken = -(-(begin + size) // ALIGNMENT) * ALIGNMENT
        self._make_pages(chunk, begin + size)
        return chunk[begin : begin + size].view(dtype)

    def collapse_next(self) -> bool:
        """Collapse one more page that was handed out and written; false: there is none left.

        It takes about a millisecond, for most of which other threads can use the page. A page that
        the kernel cannot collapse now is left to its own daemon.
        """
        while self._small:
            if self._small[0].collapse_next():
                return True
            self._small.pop(0)
        return False

    def _make_pages(self, chunk: Tensor, end: int) -> None:
        """Take the pages up to byte `end` of a chunk, huge ones while the budget lasts."""
        while self._budget is not None and self._made < end:
            address = chunk.data_ptr() + self._made
            self._made += HUGE_PAGE
            if self._budget.is_left:
                self._budget.spend(partial(_touch_huge, address))

    def _map(self, size: int) -> Tensor:
        if self._budget is None or not can_collapse():
            return _bytes_of(_map(size, in_huge_pages=True), size)
        mapping = _map(size, in_huge_pages=False)
        chunk = _bytes_of(mapping, size)
        self._small.append(_Mapped(weakref.ref(mapping), chunk.data_ptr(), size))
        return chunk


class TouchBudget:
    """The time that touching huge pages may take, in seconds of the thread's CPU time.

    Waiting for other programs does not count; compacting free memory is work of the thread that
    touches the page.

    Args:
        seconds: In all.
        usual: Seconds for a page, which are not counted; None: what small pages take here.
        clock: The thread's CPU time.
    """

    def __init__(
        self,
        seconds: float = BUDGET_S,
        *,
        usual: float | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._left = seconds
        self._usual = usual
        self._clock = clock

    @property
    def is_left(self) -> bool:
        """True while one more huge page may be touched."""
        return self._left > 0

    def spend(self, make: Callable[[], object]) -> None:
        """Make a page, and count how much longer it took than usual."""
        if self._usual is None:
            self._usual = min(self._time(_fill_small) for _ in range(_SAMPLES))
        self._left -= max(0.0, self._time(make) - self._usual)

    def _time(self, work: Callable[[], object]) -> float:
        begin = self._clock()
        work()
        return self._clock() - begin


class _Mapped:
    """Small pages to collapse, unless they are freed before."""

    def __init__(self, mapping: "weakref.ref[mmap.mmap]", address: int, size: int) -> None:
        self._mapping = mapping
        self._address, self._size = address, size
        self._next = address

    def collapse_next(self) -> bool:
        held = self._mapping()  # so that it is not given back meanwhile
        if held is None:
            return False
        if self._next < self._address + self._size:
            _advise(self._next, HUGE_PAGE, _MADV_COLLAPSE)
            self._next += HUGE_PAGE
            return True
        if hasattr(mmap, "MADV_HUGEPAGE"):
            _advise(self._address, self._size, mmap.MADV_HUGEPAGE)
        return False


def zeros_in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on its own; it takes up memory as it is written, 2 MB at a time."""
    count = math.prod(shape)
    size = max(1, count) * dtype.itemsize
    return _bytes_of(_map(size, in_huge_pages=True), size).view(dtype)[:count].view(*shape)


@cache
def can_collapse() -> bool:
    """True if this kernel collapses pages on request (MADV_COLLAPSE); tried once."""
    mapping = _map(HUGE_PAGE, in_huge_pages=False)
    page = _bytes_of(mapping, HUGE_PAGE)
    page[0] = 1  # only pages that are written can be collapsed
    return _advise(page.data_ptr(), HUGE_PAGE, _MADV_COLLAPSE) in _NOT_NOW


def _touch_huge(address: int) -> None:
    """Let the kernel make the page now, huge if it can."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _advise(address, HUGE_PAGE, mmap.MADV_HUGEPAGE)
    ctypes.memset(address, 0, 1)


def _fill_small() -> None:
    """Write to as many small pages as one huge page has."""
    with _map(HUGE_PAGE, in_huge_pages=False) as mapping:
        for at in range(0, HUGE_PAGE, mmap.PAGESIZE):
            mapping[at] = 1


def _advise(address: int, size: int, advice: int) -> int:
    """The error's number, or 0. Unlike with Python's own, other threads go on meanwhile."""
    failed = _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice))
    return ctypes.get_errno() if failed else 0


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _map(size: int, *, in_huge_pages: bool) -> mmap.mmap:
    """Map memory for `size` bytes that begin at a huge page."""
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
