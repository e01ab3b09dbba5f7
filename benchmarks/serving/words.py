"""Errors as a person at a terminal reads them; the commands of every benchmark share it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks.serving.errors import BenchmarkError

EXIT_INTERRUPTED: Final = 130


@contextmanager
def errors_in_words() -> Iterator[None]:
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
