"""`python -m benchmarks.overhead`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

The small model with 1, 16 and 64 rows, greedy, sampled and with penalties:

    python -m benchmarks.overhead --out benchmarks/results/overhead.json

One compute thread, whose own CPU time counts; best where other work runs:

    python -m benchmarks.overhead --threads 1

With async scheduling and without, in turns:

    python -m benchmarks.overhead --async-scheduling both --rows 1 --rows 16 --repeats 5
"""

app = make_app()


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.overhead")


@app.command(epilog=_EPILOG)
def run(
    *,
    model: Annotated[
        list[str] | None, typer.Option(help="S or M: 29 or 473 million random weights. [S]")
    ] = None,
    rows: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences that decode. [1, 16, 64]")
    ] = None,
    sampling: Annotated[
        list[str] | None, typer.Option(help="greedy, sampled or penalised. [all three]")
    ] = None,
    async_scheduling: Annotated[
        str, typer.Option(help="default, on, off, or both: in turns.")
    ] = "default",
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads. [all cores]")] = None,
    steps: Annotated[int, typer.Option(min=8, help="Decode steps of a run.")] = 128,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of a sequence.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repeats, in turns.")] = 3,
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models. [the per-user cache]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure what a decode step costs beside its forward pass, part by part; medians."""
    from benchmarks.overhead.session import Settings, run_all

    with report_errors():
        run_all(
            Settings(
                models=tuple(model or ["S"]),
                rows=tuple(rows or [1, 16, 64]),
                samplings=tuple(sampling or ["greedy", "sampled", "penalised"]),
                async_scheduling=async_scheduling,
                num_threads=threads,
                num_steps=steps,
                num_prompt=prompt,
                repeats=repeats,
                folder=models,
            ),
            out=out,
        )
