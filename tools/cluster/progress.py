"""How long work says where it is: the shape of `tandem`'s own progress lines."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

Tell = Callable[[str], None]
"""Adds a detail to the phase that runs."""


class Progress(Protocol):
    """Shows phases; `tandem_serve.commands.common.Progress` is one."""

    def phase(self, text: str, /) -> AbstractContextManager[Tell]:
        """Show `text` while the block lasts, and how long it took."""
        ...


class Silent:
    """Progress that nobody sees."""

    @contextmanager
    def phase(self, _text: str, /) -> Iterator[Tell]:
        """Show nothing."""
        yield lambda _line: None


SILENT: Final = Silent()
