"""`python -m benchmarks.soak`: options, help, exit codes.

Exit codes: 0 nothing grows, 1 something grows or it failed, 2 wrong usage,
130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

Half an hour at 80 % of what the machine does at most:

    python -m benchmarks.soak --out benchmarks/results/soak

A short trial:

    python -m benchmarks.soak --minutes 2

docs/benchmarks/method.md explains the figures.
"""

app = make_app()


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.soak")


@app.command(epilog=_EPILOG)
def soak(
    *,
    minutes: Annotated[float, typer.Option(min=0.5, help="Minutes of load.")] = 30.0,
    share: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Traffic, as a share of the highest rate.")
    ] = 0.8,
    change_every: Annotated[
        float, typer.Option(min=1.0, help="Seconds between two live changes.")
    ] = 60.0,
    manifest: Annotated[Path, typer.Option("-f", "--file", help="Manifest of the service.")] = Path(
        "examples/tandem-tiny/local.yaml"
    ),
    seed: Annotated[int, typer.Option(help="Seed of arrivals and kinds of requests.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for soak.json and soak.png; they are replaced.")
    ] = None,
) -> None:
    """Keep a service under load with aborts, errors and live changes; show what grows."""
    with report_errors():
        from benchmarks.soak.session import Settings, run

        settings = Settings(
            duration_s=60.0 * minutes,
            share=share,
            change_every_s=change_every,
            manifest=manifest,
            seed=seed,
        )
        if not run(settings, out=out):
            raise typer.Exit(1)
