"""Counts of the tokens of a sequence: counted once, and then updated as the sequence grows."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_SPARE: Final = 64


class TokenCounts:
    """The distinct tokens of a prompt and its output, and the occurrences of each in the output.

    Penalties apply to these and to no other token of the vocabulary, and a step adds one token to
    each sequence: counting all of them again would cost more with each.

    Args:
        prompt: Tokens of the prompt.
    """

    __slots__ = ("_counts", "_ids", "_index", "_noted", "_size")

    def __init__(self, prompt: Sequence[int]) -> None:
        ids = list(dict.fromkeys(prompt))
        self._index = {token_id: at for at, token_id in enumerate(ids)}
        self._size = len(ids)
        self._ids = np.zeros(self._size + _SPARE, dtype=np.int64)
        self._ids[: self._size] = ids
        self._counts = np.zeros(self._size + _SPARE, dtype=np.float32)
        self._noted = 0

    def update(self, output: Sequence[int]) -> None:
        """Count the tokens added to the output since the last call; none is ever removed."""
        for token_id in output[self._noted :]:
            at = self._index.get(token_id)
            if at is None:
                at = self._add(token_id)
            self._counts[at] += 1.0
        self._noted = len(output)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The different tokens."""
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """Occurrences of each of `ids` in the output; 0: in the prompt alone."""
        return self._counts[: self._size]

    def _add(self, token_id: int) -> int:
        at = self._size
        if at == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros(at, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(at, dtype=np.float32)))
        self._ids[at] = token_id
        self._index[token_id] = at
        self._size = at + 1
        return at
