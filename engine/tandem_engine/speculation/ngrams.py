"""Lookup of n-grams: the tokens that followed when the last ones of a text stood there before.

Prompt lookup (Saxena, 2023) and LLMA (Yang et al., "Inference with reference", 2023): answers copy
from their prompt, from themselves, and from each other.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

_FACTOR: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_MANY: Final = 32
"""Tokens from which on keys are computed all at once."""


class NgramTable:
    """A text that grows at its end, and where each of its n-grams stood last.

    Args:
        sizes: Lengths of the n-grams, the longest first.
        capacity: Tokens that are kept; of a longer text, half of that at least is.
    """

    def __init__(self, sizes: Sequence[int], *, capacity: int) -> None:
        self._sizes = sizes
        self._capacity = capacity
        self._tokens: list[int] = []
        # Key of an n-gram → where the token behind it stands. Two that have one key would give a
        # wrong draft, which costs no more than any other.
        self._behind: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        first = len(self._tokens)
        self._tokens += tokens
        if len(self._tokens) > self._capacity:
            self._tokens = self._tokens[-(self._capacity // 2) :]
            self._behind.clear()
            first = 0
        self._index(first)

    def continuation(self, tail: Sequence[int], count: int, *, shortest: int = 1) -> list[int]:
        """Return the tokens that followed the longest n-gram that `tail` ends with; none: unknown.

        Where the text ends before `count` of them, it is taken to go on as it did from there: a
        phrase that repeats itself is continued, however short it is.

        Args:
            tail: Tokens, of which the last ones are looked up; it may be the text itself.
            count: Tokens at most.
            shortest: Length of the shortest n-gram that counts.
        """
        for size in self._sizes:
            if size < shortest or size > len(tail):
                continue
            start = self._behind.get(_key(tail[-size:]))
            if start is not None:
                period = len(self._tokens) - start
                return [self._tokens[start + at % period] for at in range(count)]
        return []

    def _index(self, first: int) -> None:
        """Note the n-grams in front of the tokens from `first` on."""
        tokens, behind = self._tokens, self._behind
        for size in self._sizes:
            start = max(first, size)
            if len(tokens) - start >= _MANY:
                keys = _keys(tokens[start - size :], size)
                behind.update(zip(keys, range(start, len(tokens)), strict=True))
                continue
            for at in range(start, len(tokens)):
                behind[_key(tokens[at - size : at])] = at


def _key(tokens: Sequence[int]) -> int:
    key = len(tokens)
    for token in tokens:
        key = key * _FACTOR + token & _MASK
    return key


def _keys(tokens: Sequence[int], size: int) -> list[int]:
    """Return the keys of all n-grams of a text but the last one, behind which nothing stands."""
    text = np.array(tokens, dtype=np.uint64)
    count = len(text) - size
    keys = np.full(count, size, dtype=np.uint64)
    for at in range(size):
        keys *= np.uint64(_FACTOR)
        keys += text[at : at + count]
    numbers: list[int] = keys.tolist()
    return numbers
