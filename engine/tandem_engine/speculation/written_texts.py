"""What the requests of a replica have written, for others to continue; tenants are kept apart."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from tandem_engine.speculation.ngrams import NgramTable

SIZE: Final = 4
"""Tokens that must be the same: fewer are so by chance."""
MOST_TOKENS: Final = 1 << 16
"""Tokens that are kept of all tenants together; about 16 MB."""
_BETWEEN: Final = (1 << 31) - 1
"""Stands between two texts; no model has an embedding for it, so no draft goes on behind it."""


class WrittenTexts:
    """Tables of n-grams, one for each `cache_salt`; those that were not used for longest go first.

    Args:
        most_tokens: Tokens that are kept of all tenants together.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tables: OrderedDict[str, NgramTable] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        return self._num_tokens

    def add(self, salt: str, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Keep an output, with the end of the prompt that led to it."""
        if not output:
            return
        table = self._tables.setdefault(salt, NgramTable((SIZE,), capacity=self._most_tokens))
        self._tables.move_to_end(salt)
        self._num_tokens -= len(table)
        table.extend((*prompt[-SIZE:], *output, _BETWEEN))
        self._num_tokens += len(table)
        while self._num_tokens > self._most_tokens and len(self._tables) > 1:
            _, oldest = self._tables.popitem(last=False)
            self._num_tokens -= len(oldest)

    def continuation(self, salt: str, tail: Sequence[int], count: int) -> list[int]:
        """Return how a text of the tenant went on behind the end of `tail`; none: it is in none."""
        table = self._tables.get(salt)
        if table is None:
            return []
        self._tables.move_to_end(salt)
        return table.continuation(tail, count)
