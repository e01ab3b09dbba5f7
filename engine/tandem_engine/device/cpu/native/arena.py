"""Memory for the activations of the steps that are under way at once."""

from typing import Final

import torch
from torch import Tensor

_UNIT: Final = 64
"""Elements at a multiple of which memory begins: at least a cache line."""


class ActivationArena:
    """One piece of memory, of which one step has the head and another one beside it the tail.

    The halves of a step have together as many rows as the step, so they need no more than it does
    as a whole. The piece is kept from step to step, and made again only for a larger step than all
    before, while none uses it. One thread at a time may call it.

    Args:
        dtype: Type of the activations.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(0, dtype=dtype)
        self._head = self._tail = 0
        self._beside = 0
        """Elements in memory of their own, for which no place was left."""
        self._needed = 0
        self.num_made = 0
        """Times that the piece was made."""

    def reserve(self, count: int) -> None:
        """Have room for `count` elements of two steps, from the next on that finds none in use."""
        self._needed = max(self._needed, _rounded(count) + _UNIT)

    def take(self, count: int) -> Tensor:
        """Return memory for `count` elements, which no other has until it is given back."""
        size, in_use = _rounded(count), self._head + self._tail + self._beside
        self._needed = max(self._needed, in_use + size)
        if not in_use and self._needed > len(self._memory):
            # The old piece goes first: both at once would be memory that was not counted.
            self._memory = self._memory.new_empty(0)
            self._memory = self._memory.new_empty(self._needed)
            self.num_made += 1
        room = len(self._memory) - self._head - self._tail
        if not self._head and size <= room:
            self._head = size
            return self._memory[:count]
        if not self._tail and size <= room:
            self._tail = size
            return self._memory[len(self._memory) - size :][:count]
        self._beside += size
        return self._memory.new_empty(count)

    def give_back(self, taken: Tensor) -> None:
        """Let others have what `take` returned."""
        offset, size = taken.data_ptr() - self._memory.data_ptr(), _rounded(len(taken))
        if self._head == size and not offset:
            self._head = 0
        elif self._tail == size and offset == self._offset_of_tail():
            self._tail = 0
        else:
            self._beside -= size

    def _offset_of_tail(self) -> int:
        return (len(self._memory) - self._tail) * self._memory.element_size()


def _rounded(count: int) -> int:
    return -(-count // _UNIT) * _UNIT
