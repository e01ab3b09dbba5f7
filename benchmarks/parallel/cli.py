"""`python -m benchmarks.parallel`: subcommands, options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

Handing steps to one rank and to three, all cases:

    python -m benchmarks.parallel handover --out benchmarks/results/handover.json

Decode steps of 256 rows alone, while readers spin instead of sleeping:

    python -m benchmarks.parallel handover --case decode --rows 256 --spin-us 1000

An all-reduce of 1 KB to 16 MB between two ranks:

    python -m benchmarks.parallel collectives --out benchmarks/results/collectives.json

Four ranks, one size:

    python -m benchmarks.parallel collectives --ranks 4 --size 8192

Two ranks with a thread each beside one with two, on the model M, and the memory of each rank:

    python -m benchmarks.parallel tp --out benchmarks/results/tp.json

Two pipeline stages, with and without pipelining, beside one rank:

    python -m benchmarks.parallel pipeline --model S

Faults of a rank, twenty of each shape beside four busy processes, and as long without one:

    python -m benchmarks.parallel faults --out benchmarks/results/faults.json
"""

app = make_app(description="Measure the parts of a replica of several ranks.", epilog=_EPILOG)


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.parallel")


@app.callback()
def _group() -> None:
    """Keep the name of a subcommand on the command line, also where there is only one."""


@app.command()
def handover(
    *,
    rows: Annotated[
        list[int] | None, typer.Option(min=1, help="Rows of a step. [1, 16, 64, 256, 1000]")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="decode, mixed or beams. [all three]")
    ] = None,
    readers: Annotated[
        list[int] | None, typer.Option(min=1, help="Ranks that steps are handed to. [1, 3]")
    ] = None,
    steps: Annotated[int, typer.Option(min=10, help="Steps of each case.")] = 200,
    context: Annotated[int, typer.Option(min=256, help="Tokens of a prompt, about.")] = 4096,
    pause_us: Annotated[int, typer.Option(min=0, help="Pause between two steps.")] = 2000,
    spin_us: Annotated[int, typer.Option(min=0, help="Time that readers spin.")] = 20,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure what it costs to hand steps to other ranks, beside pickle; medians."""
    from benchmarks.parallel.handover import CASES, Settings, run_all

    unknown = [name for name in case or () if name not in CASES]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is none of {', '.join(CASES)}")
    with report_errors():
        run_all(
            Settings(
                rows=tuple(rows or (1, 16, 64, 256, 1000)),
                cases=tuple(case or CASES),
                readers=tuple(readers or (1, 3)),
                num_steps=steps,
                context=context,
                pause_s=pause_us / 1e6,
                spin_s=spin_us / 1e6,
            ),
            out=out,
        )


@app.command()
def collectives(
    *,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Ranks of the world.")] = 2,
    size: Annotated[
        list[int] | None, typer.Option(min=2, help="Bytes of the tensor. [1 KB to 16 MB]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="For each measurement.")] = 0.5,
    pin: Annotated[bool, typer.Option(help="Pin each rank to a CPU.")] = True,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure an all-reduce of bfloat16 among ranks of this host, beside copying memory."""
    from benchmarks.parallel.collectives import SIZES, Settings, run_all

    with report_errors():
        run_all(
            Settings(
                ranks=ranks,
                sizes=tuple(size or SIZES),
                seconds=seconds,
                pin=pin,
            ),
            out=out,
        )


@app.command()
def tp(
    *,
    model: Annotated[str, typer.Option(help="S, M or Q of benchmarks.peers.")] = "M",
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models; default: the per-user cache.")
    ] = None,
    degree: Annotated[int, typer.Option(min=2, help="Ranks of tp.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of both sides, a load.")] = 9,
    only: Annotated[
        list[str] | None, typer.Option(help="Begin of a name: prefill, decode … [all]")
    ] = None,
    w8a8: Annotated[bool, typer.Option(help="Weights and activations in 8 bits.")] = False,
    pin: Annotated[
        bool, typer.Option(help="Give each rank cores of its own, as it has them when deployed.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="File for the figures as JSON; beside it goes a plot.")
    ] = None,
) -> None:
    """Measure ranks of tp with a thread each beside one rank with as many; memory of each rank."""
    from benchmarks.parallel.tp import Settings, run_all

    with report_errors():
        run_all(
            Settings(
                model=model,
                models=models,
                tp=degree,
                rounds=rounds,
                loads=tuple(only or ()),
                quantization="w8a8" if w8a8 else "none",
                pin=pin,
            ),
            out=out,
        )


@app.command()
def pipeline(
    *,
    model: Annotated[str, typer.Option(help="S, M or Q of benchmarks.peers.")] = "M",
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models; default: the per-user cache.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=2, help="Prompts, a step each.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 256,
    decodes: Annotated[int, typer.Option(min=1, help="Tokens of each row behind it.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of all sides.")] = 5,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure two pipeline stages with and without pipelining, beside one rank."""
    from benchmarks.parallel.pipeline import Settings, run_all

    with report_errors():
        run_all(
            Settings(
                model=model,
                models=models,
                prompts=prompts,
                tokens=tokens,
                decodes=decodes,
                rounds=rounds,
            ),
            out=out,
        )


@app.command()
def faults(
    *,
    model: Annotated[Path, typer.Option(help="Folder of the model.")] = Path(
        "examples/tandem-tiny"
    ),
    shape: Annotated[
        list[str] | None, typer.Option(help="tp2, tp2-pp2, dp2-pp2 or tp2-dp2-pp2. [all four]")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Faults of each shape.")] = 20,
    busy: Annotated[int, typer.Option(min=0, help="Busy processes beside it.")] = 4,
    silence: Annotated[float, typer.Option(min=0.5, help="Longest silence of a rank, s.")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Stop ranks, let them hang: which one is blamed, after how long, and is any without reason."""
    from benchmarks.parallel.faults import SHAPES, Settings, run_all

    unknown = [name for name in shape or () if name not in SHAPES]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is none of {', '.join(SHAPES)}")
    with report_errors():
        run_all(
            Settings(
                model=model,
                shapes=tuple(shape or SHAPES),
                runs=runs,
                busy=busy,
                silence_s=silence,
            ),
            out=out,
        )
