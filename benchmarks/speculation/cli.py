"""`python -m benchmarks.speculation`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

All methods at 1, 4, 16 and 64 rows, with figures and a plot:

    python -m benchmarks.speculation --out benchmarks/results/speculation.json

One row, answers that end where they end:

    python -m benchmarks.speculation --rows 1 --output-len 0

One row beside llama.cpp and vLLM, with the environments of benchmarks.peers:

    python -m benchmarks.speculation --rows 1 --llamacpp ~/peers/llamacpp/bin/python \
--vllm ~/peers/vllm/bin/python

Drawn tokens, weights in 8 bits:

    python -m benchmarks.speculation --rows 1 --temperature 1 --w8a8
"""

app = make_app(epilog=_EPILOG)


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.speculation")


@app.command(epilog=_EPILOG)
def run(
    *,
    model: Annotated[str, typer.Option(help="Shape: S, M or Q of benchmarks.peers.")] = "M",
    models: Annotated[
        Path | None, typer.Option(help="Folder of the models; default: the per-user cache.")
    ] = None,
    rows: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences at once. [1, 4, 16, 64]")
    ] = None,
    workload: Annotated[list[str] | None, typer.Option(help="copying or questions. [both]")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="ngram, draft or auto, beside off. [all]")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of all methods, a case.")] = 5,
    output_len: Annotated[
        int, typer.Option(min=0, help="Tokens of an answer; 0: it ends where it ends.")
    ] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0: greedy.")] = 0.0,
    max_draft_tokens: Annotated[int, typer.Option(min=1, max=16, help="Drafts a step.")] = 4,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads; default: as many as CPUs.")
    ] = None,
    llamacpp: Annotated[
        Path | None, typer.Option(help="Interpreter with llama-cpp-python, for one row.")
    ] = None,
    vllm: Annotated[Path | None, typer.Option(help="Interpreter with vLLM, for one row.")] = None,
    w8a8: Annotated[bool, typer.Option(help="Weights and activations in 8 bits.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="File for the figures as JSON; beside it goes a plot.")
    ] = None,
) -> None:
    """Measure tokens a second with drafts and without, on tandem-tiny in a large shape."""
    from benchmarks.speculation.questions import WORKLOADS
    from benchmarks.speculation.session import Settings, run_all
    from benchmarks.speculation.sides import METHODS, OFF

    for names, known in ((workload, WORKLOADS), (method, METHODS)):
        unknown = [name for name in names or () if name not in known]
        if unknown:
            raise typer.BadParameter(f"'{unknown[0]}' is none of {', '.join(known)}")
    methods = METHODS if method is None else tuple(dict.fromkeys((OFF, *method)))
    with report_errors():
        run_all(
            Settings(
                model=model,
                models=models,
                rows=tuple(rows or (1, 4, 16, 64)),
                workloads=tuple(workload or WORKLOADS),
                methods=methods,
                rounds=rounds,
                output_len=output_len,
                temperature=temperature,
                max_draft_tokens=max_draft_tokens,
                quantization="w8a8" if w8a8 else "auto",
                peers={
                    name: python
                    for name, python in (("llamacpp", llamacpp), ("vllm", vllm))
                    if python is not None
                },
                num_threads=threads or len(os.sched_getaffinity(0)),
            ),
            out,
        )
