"""`python -m benchmarks.peers`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.peers.rows import parse_row
from benchmarks.peers.shapes import SHAPES, find_shape
from benchmarks.serving.case import parse_case
from benchmarks.serving.command_line import make_app, report_errors

ROWS: Final = ("1x32x64", "16x32x64", "16x32x64:sampled", "1x2048x1", "16x256x64")

_EPILOG: Final = """\
[bold]Examples[/bold]

The peers' environments, once, and the models:

    python -m benchmarks.peers environments --folder ~/peers
    python -m benchmarks.peers models

All engines on all models, bf16 and 8 bit, three times in turns:

    python -m benchmarks.peers run --openvino ~/peers/openvino/bin/python \
--llamacpp ~/peers/llamacpp/bin/python --vllm ~/peers/vllm/bin/python --out benchmarks/results/peers

Tandem alone beside the machine's limit, the small model, two rows:

    python -m benchmarks.peers run --only S --types bf16 --rows 1x32x64,16x32x64

The share of the engine's throughput that HTTP and Ray leave:

    python -m benchmarks.peers through-http

docs/benchmarks/method.md explains the figures.
"""

app = make_app(
    description="Compare Tandem with OpenVINO GenAI, llama.cpp and vLLM on the same weights.",
    epilog=_EPILOG,
)

_Models = Annotated[
    Path | None,
    typer.Option(help="Folder of the models and their conversions; default: the per-user cache."),
]
_Out = Annotated[
    Path | None, typer.Option(help="Folder for result.json, result.png and the engines' logs.")
]
_Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of every engine; default: the physical cores.")
]
_Timeout = Annotated[float, typer.Option(min=1, help="Time limit of one answer, in seconds.")]


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.peers")


@app.command()
def models(
    *,
    only: Annotated[str | None, typer.Option(help="S, M or Q; default: all.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; default: the per-user cache.")
    ] = None,
) -> None:
    """Make the checkpoints S (29 M), M (473 M) and Q (596 M): random weights, always the same."""
    with report_errors():
        from benchmarks.peers.models import cache_folder, ensure_model
        from benchmarks.serving.result import status_line

        shapes = [find_shape(only)] if only else list(SHAPES.values())
        for shape in shapes:
            with status_line() as note:
                note(f"making {shape.name}, {shape.num_parameters / 1e6:.0f} M parameters")
                path = ensure_model(shape, out or cache_folder() / "models")
            typer.echo(path)


@app.command()
def environments(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the environments; default: the per-user cache."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Comma-separated: openvino, llamacpp, vllm; default: all.")
    ] = None,
) -> None:
    """Make the peers' virtual environments with uv; print the reason where one fails."""
    with report_errors():
        from benchmarks.peers.environments import make_environments
        from benchmarks.peers.models import cache_folder

        names = None if only is None else tuple(only.split(","))
        make_environments(folder or cache_folder() / "environments", names)


@app.command()
def run(
    *,
    openvino: Annotated[
        Path | None, typer.Option(help="Python that has openvino-genai and optimum-intel.")
    ] = None,
    llamacpp: Annotated[
        Path | None, typer.Option(help="Python that has llama-cpp-python and gguf.")
    ] = None,
    vllm: Annotated[Path | None, typer.Option(help="Python that has vllm for CPUs.")] = None,
    only: Annotated[str | None, typer.Option(help="S, M or Q; default: all.")] = None,
    types: Annotated[str, typer.Option(help="Comma-separated: bf16, w8a8.")] = "bf16,w8a8",
    rows: Annotated[
        str,
        typer.Option(
            help="Comma-separated SEQUENCESxPROMPTxOUTPUT, lengths in tokens; with :sampled behind "
            "it, tokens are drawn with temperature 1 and top_p 0.95."
        ),
    ] = ",".join(ROWS),
    repeats: Annotated[int, typer.Option(min=1, help="Number of turns of every engine.")] = 3,
    row_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds for which a row is repeated within a turn.")
    ] = 2.0,
    first_seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds for which one sequence runs right after loading, in samples."
        ),
    ] = 10.0,
    threads: _Threads = None,
    pin: Annotated[
        bool, typer.Option(help="Bind each thread to one core, for a machine without other work.")
    ] = False,
    timeout: _Timeout = 600.0,
    models: _Models = None,
    out: _Out = None,
) -> None:
    """Run every engine in turns, and measure the machine's limits."""
    with report_errors():
        from benchmarks.peers.models import cache_folder
        from benchmarks.peers.session import RunSettings
        from benchmarks.peers.session import run as run_all

        run_all(
            RunSettings(
                interpreters={"openvino": openvino, "llamacpp": llamacpp, "vllm": vllm},
                shapes=[find_shape(only)] if only else list(SHAPES.values()),
                types=tuple(types.split(",")),
                rows=tuple(parse_row(row) for row in rows.split(",")),
                repeats=repeats,
                row_s=row_seconds,
                first_s=first_seconds,
                threads=threads,
                pin=pin,
                timeout_s=timeout,
                models=models or cache_folder() / "models",
            ),
            out=out,
        )


@app.command("through-http")
def through_http(
    *,
    model: Annotated[str, typer.Option(help="S, M or Q.")] = "M",
    row: Annotated[
        str, typer.Option(help="CONCURRENCYxPROMPTxOUTPUT, lengths in tokens.")
    ] = "16x32x64",
    requests: Annotated[
        int, typer.Option(min=1, help="Requests through HTTP in each repeat.")
    ] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements of both.")] = 3,
    threads: _Threads = None,
    timeout: _Timeout = 600.0,
    models: _Models = None,
    out: _Out = None,
) -> None:
    """Compare streaming through HTTP and Ray with the engine by itself."""
    with report_errors():
        from benchmarks.peers.models import cache_folder
        from benchmarks.peers.through_http import HttpSettings
        from benchmarks.peers.through_http import run as run_http

        run_http(
            HttpSettings(
                shape=find_shape(model),
                row=parse_case(row),
                num_requests=requests,
                repeats=repeats,
                threads=threads,
                timeout_s=timeout,
                models=models or cache_folder() / "models",
            ),
            out=out,
        )
