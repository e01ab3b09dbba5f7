"""Memory in huge pages, for what is read from front to back in every step."""

import math
import mmap
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

HUGE_PAGE: Final = 2 << 20
CHUNK_BYTES: Final = 32 << 20
"""Tensors come out of chunks of this size, so that small ones share huge pages."""
ALIGNMENT: Final = 64
"""A cache line, and the widest vector."""


class HugePages:
    """Hands out tensors side by side; their memory goes back when all of a chunk are gone.

    Reading 2 MB pages is up to a tenth faster than reading 4 KB pages, because the processor looks
    up fewer addresses and fetches ahead further.
    """

    def __init__(self) -> None:
        self._chunk: Tensor | None = None
        self._taken = 0

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros, [count]."""
        size = count * dtype.itemsize
        chunk = self._chunk
        if chunk is None or self._taken + size > len(chunk):
            chunk = self._chunk = _map(max(size, CHUNK_BYTES))
            self._taken = 0
        begin = self._taken
        self._taken = -(-(begin + size) // ALIGNMENT) * ALIGNMENT
        return chunk[begin : begin + size].view(dtype)


def zeros_in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on its own; it takes up memory as it is written, 2 MB at a time."""
    count = math.prod(shape)
    return _map(max(1, count) * dtype.itemsize).view(dtype)[:count].view(*shape)


def _map(size: int) -> Tensor:
    """Bytes that begin at a huge page."""
    # Python's usual is shared memory, which has no huge pages.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapped = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapped, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_PAGE
    return whole[begin : begin + size]
