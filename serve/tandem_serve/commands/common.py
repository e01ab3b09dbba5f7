"""Helpers of all commands: reading a manifest, reporting errors, showing progress."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from tandem_serve.api.manifest import ManifestError, decode_manifest, load_manifest
from tandem_serve.api.spec import InferenceService
from tandem_serve.commands.time_zones import check_time_zones
from tandem_serve.errors import ServeError

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def read_manifest(file: Path) -> InferenceService:
    """The InferenceService of a file, or of standard input.

    Raises:
        ManifestError: it cannot be used.
    """
    service = _read(file)
    check_time_zones(service)
    return service


def _read(file: Path) -> InferenceService:
    if str(file) == "-":
        return decode_manifest(sys.stdin.buffer.read(), folder=Path.cwd(), name="standard input")
    return load_manifest(file)


@contextmanager
def report_errors(*, verbose: bool = False) -> Iterator[None]:
    """Turn the errors that a user can do something about into sentences and exit code 1."""
    try:
        yield
    except ManifestError as error:
        for problem in error.problems:
            print_error(problem)
        raise typer.Exit(EXIT_FAILED) from None
    except ServeError as error:
        if verbose and error.details:
            err.print(error.details, markup=False)
        print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None


def print_error(text: str) -> None:
    """Print one error."""
    err.print(f"[red]error:[/red] {escape(text)}")


def print_note(text: str) -> None:
    """Print one note."""
    err.print(f"[yellow]note:[/yellow] {escape(text)}")


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP unwind the program, so that it ends what it started."""
    # A shell starts background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


class Progress:
    """The phases of a longer work: a spinner on a terminal, one line each elsewhere."""

    def __init__(self, *, verbose: bool) -> None:
        self._spinner = Status("", console=err) if err.is_terminal and not verbose else None
        self._phase = ""
        self._line = ""
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self._spinner:
            self._spinner.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._spinner:
            self._spinner.stop()

    @contextmanager
    def phase(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a phase while it lasts and how long it took; yields a way to add details."""
        started = time.monotonic()
        self._show(text, "")
        yield lambda line: self._show(text, line)
        err.print(f"[green]✓[/green] {text} [dim]({time.monotonic() - started:.1f} s)[/dim]")

    @property
    def seconds(self) -> float:
        """Time since the work began."""
        return time.monotonic() - self._started

    def _show(self, phase: str, line: str) -> None:
        if (phase, line) == (self._phase, self._line):
            return
        self._phase, self._line = phase, line
        if self._spinner:
            self._spinner.update(f"{phase} [dim]{escape(line)}[/dim]")
        elif line:
            err.print(f"  {escape(line)}")
