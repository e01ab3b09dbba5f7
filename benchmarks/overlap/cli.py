"""`python -m benchmarks.overlap`: subcommands, options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

What 25 minutes can show, with a plot (root and iproute2, or else on loopback):

    python -m benchmarks.overlap steps --out benchmarks/results/overlap

One case, in a few minutes:

    python -m benchmarks.overlap steps --quick

All cases, however long they take:

    python -m benchmarks.overlap steps --minutes 0

Where there is nothing to hide, micro-batches on beside off:

    python -m benchmarks.overlap gate

The hand-over on the streams of one card, with copies to the host in place of a link:

    python -m benchmarks.overlap card --out benchmarks/results/card

TTFT through HTTP under a trace of Azure's, with and without micro-batches:

    python -m benchmarks.overlap serving --trace AzureLLMInferenceTrace_conv.csv
"""

app = make_app(description="Measure what micro-batches hide of the communication.", epilog=_EPILOG)


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.overlap")


@app.callback()
def _group() -> None:
    """Keep the name of a subcommand on the command line, also where there is only one."""


@app.command()
def steps(
    *,
    tokens: Annotated[
        list[int] | None,
        typer.Option(min=16, max=8192, help="Prompt tokens of a step. [512, 2048, 8192]"),
    ] = None,
    shares: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Communication in percent of computation. [25, 50, 100, 150]"),
    ] = None,
    prompts: Annotated[
        list[int] | None,
        typer.Option(min=1, max=16, help="Prompts that the tokens are divided into. [1, 16]"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Part of a case's name: 'one prompt, 50%' … [all]")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=2, help="Layers. [12 for 512 tokens, 8 for 2048, else 4]")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Steps of each kind. [2 for 512 tokens, else 1]")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0, help="Leave out cases that do not fit; 0: none.")
    ] = 25.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="512 tokens in one prompt at 100 %, on 6 layers.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures and a plot.")] = None,
) -> None:
    """Measure prefill steps whole and cut, over a link of a chosen rate."""
    from benchmarks.overlap.cases import NUM_PROMPTS, SHARES, TOKENS
    from benchmarks.overlap.session import Settings, run_all

    chosen = tuple(share / 100 for share in shares or ())
    with report_errors():
        run_all(
            Settings(
                tokens=tuple(tokens or ((512,) if quick else TOKENS)),
                shares=chosen or ((1.0,) if quick else SHARES),
                prompts=tuple(prompts or ((1,) if quick else NUM_PROMPTS)),
                only=tuple(only or ()),
                num_layers=layers or (6 if quick else None),
                repeats=repeats or (1 if quick else None),
                minutes=minutes,
            ),
            out=out,
        )


@app.command()
def serving(
    *,
    trace: Annotated[Path, typer.Option(help="Trace in Azure's format (CSV).")],
    limit: Annotated[int, typer.Option(min=1, help="Rows of the trace.")] = 60,
    speed: Annotated[float, typer.Option(help="Arrivals come so many times as fast.")] = 0.1,
    mbit: Annotated[float, typer.Option(min=1, help="Rate of the link, Mbit/s.")] = 200.0,
    rounds: Annotated[int, typer.Option(min=1, help="Replicas of each kind.")] = 1,
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models; default: the per-user cache.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures as JSON.")] = None,
) -> None:
    """Measure a replica of two ranks over the link through HTTP, with micro-batches and without."""
    from benchmarks.overlap.serving import ServingSettings, run_serving
    from benchmarks.serving.settings import LoadSettings

    with report_errors():
        run_serving(
            ServingSettings(
                load=LoadSettings(trace=trace, limit=limit, speed=speed),
                bits_per_s=mbit * 1e6,
                rounds=rounds,
                models=models,
            ),
            out=out,
        )


@app.command()
def gate(
    *,
    model: Annotated[str, typer.Option(help="S, M or Q of benchmarks.peers.")] = "S",
    rounds: Annotated[
        int, typer.Option(min=2, help="Turns of both sides; a gate judges by 32 cut steps.")
    ] = 100,
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models; default: the per-user cache.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures as JSON.")] = None,
) -> None:
    """Measure what the gate makes of ranks of one host, where nothing can be hidden."""
    from benchmarks.overlap.gate import GateSettings, run_gate

    with report_errors():
        run_gate(GateSettings(model=model, rounds=rounds, models=models), out=out)


@app.command()
def card(
    *,
    device: Annotated[str, typer.Option(help="A device of torch: cuda, cuda:1, cpu.")] = "cuda",
    shares: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Communication in percent of computation. [25, 50, 100, 150]"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a half.")] = 2048,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of both sides.")] = 10,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Have communication need the cores that compute.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures as JSON.")] = None,
) -> None:
    """Measure what two streams of one device hide of copies to the host and back."""
    from benchmarks.overlap.card import CardWork, run_card
    from benchmarks.overlap.cases import SHARES

    chosen = tuple(share / 100 for share in shares or ())
    with report_errors():
        run_card(
            CardWork(rows=rows, num_layers=layers, clears_by_kernel=kernel),
            device,
            shares=chosen or SHARES,
            rounds=rounds,
            out=out,
        )
