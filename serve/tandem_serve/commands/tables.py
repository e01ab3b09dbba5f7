"""Tables on a terminal, and in files and pipes."""

from typing import Final

from rich.console import Console, RenderableType

from tandem_serve.commands.common import out

_FILE_WIDTH: Final = 240


def print_table(shown: RenderableType, to: Console = out) -> None:
    """Print a table; a file or a pipe has no width that it would have to be squeezed into."""
    wide = Console(width=_FILE_WIDTH, highlight=False, stderr=to.stderr)
    console = to if to.is_terminal else wide
    console.print(shown)
