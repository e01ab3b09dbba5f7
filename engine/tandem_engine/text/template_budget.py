"""The budget of one rendering of a template: its limits, and what of them is left."""

import time
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final

from jinja2 import TemplateRuntimeError
from jinja2.utils import Namespace

_STEPS_BETWEEN_CHECKS: Final = 1024
"""Steps between readings of the clock, which cost more than a step; a power of two."""
_LARGE: Final = 2**20
"""Bytes of a result that took long enough to read the clock after it."""
_MEASURED: Final = (str, list, tuple, dict)
_ITEM_BYTES: Final = 64
"""Of an item of a list that a call makes: a short text, with its place."""
_ITEM_CHARACTERS: Final = 8
"""Of an item as it is written: quotes, comma and spaces."""
_SCALAR_CHARACTERS: Final = 32
"""Of anything written that is no text, no whole number and no collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """Limits of one rendering. Twenty thousand messages take a tenth of it."""

    steps: int = 2_000_000
    """Iterations of loops, and calls."""
    seconds: float = 5.0
    """Time of the processor."""
    characters: int = 2**25
    """Length of the whole text, and of any text or list that it makes."""
    memory: int = 2**28
    """Bytes of all texts and lists that it makes, also of those that it no longer has."""
    bits: int = 2**14
    """Of a whole number that it makes."""


class Budget:
    """The remaining budget of one rendering."""

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self._memory = limits.memory
        self._large = min(_LARGE, limits.characters)  # what is smaller is no text too long
        self._steps = limits.steps
        self._until = time.thread_time() + limits.seconds

    def step(self) -> None:
        """Count an iteration or a call."""
        self._steps -= 1
        if self._steps & (_STEPS_BETWEEN_CHECKS - 1) == 0:
            self._check_limits()

    def _check_limits(self) -> None:
        if self._steps <= 0:
            raise TemplateRuntimeError(
                f"it takes more than {self.limits.steps} iterations and calls"
            )
        if time.thread_time() > self._until:
            raise TemplateRuntimeError(f"it takes more than {self.limits.seconds} s")

    def expect(self, length: int, *, bytes_each: int = 1) -> None:
        """Refuse a text or list before it is made.

        Args:
            length: Its characters or items, at least.
            bytes_each: Memory that one of them may take until it is made.
        """
        self._check_length(length)
        if length * bytes_each > self._memory:
            self._refuse_memory()

    def expect_items(self, number: int) -> None:
        """Refuse a list of new texts before it is made."""
        self.expect(number, bytes_each=_ITEM_BYTES)

    def take(self, made: Any, *, item_bytes: int = 0) -> Any:
        """Count a text or collection that was made.

        Args:
            made: The result; numbers are checked, other values are passed.
            item_bytes: Memory of each item, where the items are new, too.
        """
        if isinstance(made, _MEASURED):
            size = getsizeof(made) + (item_bytes and item_bytes * len(made))
            self._memory -= size
            if size > self._large or self._memory < 0:
                self._check_large(len(made))
        elif isinstance(made, int):
            self.check_bits(made.bit_length())
        return made

    def _check_large(self, length: int) -> None:
        self._check_length(length)
        if self._memory < 0:
            self._refuse_memory()
        self._check_limits()

    def take_items(self, made: Any) -> Any:
        """Count a list whose items are new, too."""
        return self.take(made, item_bytes=_ITEM_BYTES)

    def check_bits(self, bits: float) -> None:
        """Refuse a number that is too large."""
        if bits > self.limits.bits:
            raise TemplateRuntimeError(f"it makes a number of more than {self.limits.bits} bits")

    def text_length(self, value: Any) -> int:
        """Characters of a value as it is written, without escapes.

        A list that holds another twice is written twice, so a small one may be a very long text.

        Raises:
            TemplateRuntimeError: there are more than may be written.
        """
        if isinstance(value, str):
            return len(value)
        length, pending = 0, [value]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                length += len(item)
            elif isinstance(item, int):
                length += item.bit_length() // 3
            elif isinstance(item, Namespace):
                pending.append(item._Namespace__attrs)  # noqa: SLF001 - its repr
            elif isinstance(item, Mapping):
                pending += item
                pending += item.values()
            elif isinstance(item, Collection) and not isinstance(item, range):
                pending += item
            else:
                length += _SCALAR_CHARACTERS
            length += _ITEM_CHARACTERS
            self._check_length(length)
        return length

    def _check_length(self, length: int) -> None:
        if length > self.limits.characters:
            raise TemplateRuntimeError(
                f"it makes a text of more than {self.limits.characters} characters"
            )

    def _refuse_memory(self) -> None:
        raise TemplateRuntimeError(
            f"it makes texts and lists of more than {self.limits.memory} bytes in all"
        )


BUDGET: Final[ContextVar[Budget]] = ContextVar("template_budget")
"""The budget of the rendering that runs; not set while a template is compiled."""
