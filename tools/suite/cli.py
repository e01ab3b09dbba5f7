"""`python -m tools.suite`: runs `make test`, or areas of the tests."""

import subprocess
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from tools.suite.areas import AREAS, Area
from tools.suite.changed import areas_of_change
from tools.suite.report import Part, report
from tools.suite.run import Run, area_run, build_parts, changed_files, check, execute, stage_runs

_EXAMPLES: Final = """[bold]Examples[/bold]

python -m tools.suite                    what make test runs

python -m tools.suite operator ranks     two areas, whole

python -m tools.suite --changed          the areas that the change since main asks for
"""

out: Final = Console(soft_wrap=True, highlight=False)


def main() -> None:
    """Run the command line."""
    typer.run(suite)


def suite(
    areas: Annotated[
        list[str] | None, typer.Argument(metavar="[AREA]...", show_default=False)
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Run the checks and every area.")] = False,
    changed: Annotated[
        bool, typer.Option(help="Run the areas that what differs from --base asks for.")
    ] = False,
    base: Annotated[str, typer.Option(help="The branch or commit to compare with.")] = "main",
    show: Annotated[bool, typer.Option("--list", help="Show the areas; run nothing.")] = False,
) -> None:
    """Run the tests in order, one part after the other, and say what came of them.

    Without arguments these are the checks and the stages of make test.
    """
    if show:
        _show(AREAS)
        return
    chosen = AREAS if every else _named(areas or ())
    if changed:
        chosen = _changed(base)
        out.print(f"areas: {', '.join(area.name for area in chosen) or 'none'}")
    runs = [area_run(area) for area in chosen] if chosen or changed else stage_runs()
    parts: list[Part] = []
    if every or not chosen:
        parts.append(check())
        # A single area builds what it needs, which is mostly nothing.
        if runs and not _have_failed(parts):
            parts.append(build_parts())
    if not _have_failed(parts):
        parts += _execute(runs)
    _end(parts)


def _have_failed(parts: Sequence[Part]) -> bool:
    """Return True if anything has failed."""
    return any(part.outcomes.failures for part in parts)


def _execute(runs: Sequence[Run]) -> Iterator[Part]:
    """Execute runs one after the other, until the user ends one."""
    for run in runs:
        out.rule(run.name)
        part = execute(run)
        yield part
        if part.outcomes.is_interrupted:
            return


def _named(names: Sequence[str]) -> Sequence[Area]:
    areas = {area.name: area for area in AREAS}
    unknown = [name for name in names if name not in areas]
    if unknown:
        raise typer.BadParameter(f"there is no area {unknown[0]}; the areas are {', '.join(areas)}")
    return [areas[name] for name in names]


def _changed(base: str) -> Sequence[Area]:
    try:
        return areas_of_change(changed_files(base))
    except subprocess.CalledProcessError as error:
        raise typer.BadParameter(
            f"--base {base} is no commit that git can compare with: {error.stderr.strip()}"
        ) from None


def _show(areas: Sequence[Area]) -> None:
    table = Table("command", "minutes", "what it holds", box=None)
    for area in areas:
        table.add_row(f"make test-{area.name}", f"{area.minutes}", area.holds)
    out.print(table)


def _end(parts: Sequence[Part]) -> None:
    out.rule("summary")
    for line in report(parts):
        out.print(line, markup=False)
    if _have_failed(parts):
        raise typer.Exit(1)
