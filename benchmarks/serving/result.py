"""Steps around every benchmark's measurement: facts, a line of progress, the files."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.machine import git_commit, machine_facts

_FILE_WIDTH: Final = 140


def begin(out: Path | None) -> dict[str, Any]:
    """Check before the measurement that its result can be written; collect the facts.

    Raises:
        BenchmarkError: the folder cannot be made.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchmarkError(f"The folder {out} cannot be created: {error.strerror}.") from None
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "machine": machine_facts(),
    }


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """One line that is overwritten on a terminal; a line each elsewhere."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False, soft_wrap=True)
        return
    with console.status("measuring") as status:
        yield status.update


def result_console() -> Console:
    """Standard output; a file or pipe is as wide as the tables are."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def title_of(facts: dict[str, Any], what: str) -> str:
    """Title of a plot: subject, machine and date."""
    machine = facts["machine"]
    return f"{what}: {machine['cpu_model']}, {machine['num_cores']} cores, {facts['begun'][:10]}"


def write_result(
    folder: Path, document: dict[str, Any], draw: Callable[[Path], None] | None = None
) -> None:
    """Write result.json, and let `draw` write result.png; None: there is no picture.

    Raises:
        BenchmarkError: one cannot be written.
    """
    with _written_to(folder):
        write_document(folder / "result.json", document)
    if draw is not None:
        draw_result(folder, draw)


def draw_result(folder: Path, draw: Callable[[Path], None]) -> None:
    """Let `draw` write result.png.

    Raises:
        BenchmarkError: it cannot be written.
    """
    with _written_to(folder):
        draw(folder / "result.png")


@contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BenchmarkError(f"{folder} cannot be written to: {error.strerror}.") from None


def write_document(file: Path, document: dict[str, Any]) -> None:
    """Write figures as JSON.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, default=str)
    file.write_text(text + "\n", encoding="utf-8")


def write_figures(file: Path, **figures: Any) -> None:
    """Write figures as JSON, with the machine and the commit that they are of; make the folder.

    Raises:
        BenchmarkError: the file cannot be written.
    """
    document = {"machine": machine_facts(), "git_commit": git_commit(), **figures}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_document(file, document)
    except OSError as error:
        raise BenchmarkError(f"{file} cannot be written: {error.strerror}.") from None
