"""`python -m benchmarks.prompt_logprobs`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors
from tandem_engine.api.request import MAX_TOP_LOGPROBS

_EPILOG: Final = f"""\
[bold]Examples[/bold]

A prompt of 2,048 tokens with the likeliest token of each position, in turns with one without:

    python -m benchmarks.prompt_logprobs --out benchmarks/results/prompt-logprobs.json

The {MAX_TOP_LOGPROBS} likeliest, and a short prompt:

    python -m benchmarks.prompt_logprobs --top {MAX_TOP_LOGPROBS} --tokens 512
"""

app = make_app()


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.prompt_logprobs")


@app.command(epilog=_EPILOG)
def run(
    *,
    model: Annotated[
        str, typer.Option(help="S, M or Q (M with a vocabulary of 151,936), random weights.")
    ] = "Q",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the prompt.")] = 2048,
    top: Annotated[
        int, typer.Option(min=0, max=MAX_TOP_LOGPROBS, help="Likeliest tokens of each position.")
    ] = 1,
    chunk: Annotated[
        int, typer.Option(min=16, max=8192, help="splitChunkTokens; a multiple of 16.")
    ] = 256,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads. [all cores]")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of both sides.")] = 3,
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models. [the per-user cache]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure a prompt with and without log-probabilities, alone and beside a stream; medians."""
    from benchmarks.prompt_logprobs.session import Settings, run_all

    if chunk % 16:
        raise typer.BadParameter(f"{chunk} is not a multiple of 16", param_hint="--chunk")
    with report_errors():
        run_all(
            Settings(
                model=model,
                num_tokens=tokens,
                num_top=top,
                chunk=chunk,
                num_threads=threads,
                rounds=rounds,
                folder=models,
            ),
            out=out,
        )
