"""Style and error messages of all benchmarks' command lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks.serving.errors import BenchmarkError

EXIT_INTERRUPTED: Final = 130


def make_app(*, description: str | None = None, epilog: str | None = None) -> typer.Typer:
    """Make a command line; its caller adds the commands.

    Args:
        description: Purpose of its commands, where there are several: shown when none is given.
        epilog: Text below their list, such as examples.
    """
    return typer.Typer(
        add_completion=False,
        no_args_is_help=description is not None,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=description,
        epilog=epilog,
    )


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn what ends a benchmark early into a sentence and an exit code."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        yield
    except BenchmarkError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}")
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
