"""`python -m benchmarks.kernels`: options, help, exit codes.

Exit codes: 0 measured, 1 could not be carried out, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

Everything, on as many threads as torch takes; best on a machine that does nothing else:

    python -m benchmarks.kernels --out benchmarks/results/kernels.json

On a busy machine: one thread, whose own CPU time counts:

    python -m benchmarks.kernels --threads 1

Whole steps of the small model alone; one kernel of the other variants:

    python -m benchmarks.kernels --model S --no-kernels

    python -m benchmarks.kernels --variant avx2 --only attention --no-steps

Sampling alone, at 16 rows of Qwen3's vocabulary; without torch, which takes minutes for it:

    python -m benchmarks.kernels --only sample --no-steps

    python -m benchmarks.kernels --only sample --no-steps --no-reference --threads 1
"""

app = make_app()


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.kernels")


@app.command(epilog=_EPILOG)
def run(
    *,
    model: Annotated[
        list[str] | None, typer.Option(help="S or M: 29 or 473 million random weights; both.")
    ] = None,
    variant: Annotated[str, typer.Option(help="auto, avx512, avx2 or portable.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="1: CPU time counts. Default: all cores, wall time.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="For each measurement.")] = 1.0,
    only: Annotated[str, typer.Option(help="Kernels whose name contains this.")] = "",
    kernels: Annotated[bool, typer.Option(help="Measure each kernel.")] = True,
    steps: Annotated[bool, typer.Option(help="Measure whole forward steps.")] = True,
    reference: Annotated[bool, typer.Option(help="Measure in torch, too.")] = True,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure the kernels of the CPU, native beside torch in alternation; medians."""
    from benchmarks.kernels.session import Session, Settings

    names = model or ["S", "M"]
    unknown = [name for name in names if name not in ("S", "M")]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is not S or M", param_hint="--model")
    settings = Settings(
        models=tuple(names),
        variant=variant,
        threads=threads,
        seconds=seconds,
        only=only,
        kernels=kernels,
        steps=steps,
        reference=reference,
    )
    with report_errors():
        Session(settings).run(out)
