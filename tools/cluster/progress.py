"""Progress lines of long work, in the form of `tandem`'s own."""

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
    """Progress that is not shown."""

    @contextmanager
    def phase(self, _text: str, /) -> Iterator[Tell]:
        """Show nothing."""
        yield lambda _line: None


SILENT: Final = Silent()
