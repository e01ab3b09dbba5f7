"""`python -m benchmarks.large_calls`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

_EPILOG: Final = """\
[bold]Examples[/bold]

2,000 prompts in one call to the example service, which is started and ended:

    python -m benchmarks.large_calls --out benchmarks/results/large-calls.json

The same with 1,024 stop strings; a service that runs already:

    python -m benchmarks.large_calls --stop-strings 1024

    python -m benchmarks.large_calls --url http://127.0.0.1:8000/v1
"""

app = make_app()


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.large_calls")


@app.command(epilog=_EPILOG)
def run(
    *,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the large call.")] = 2000,
    stop_strings: Annotated[int, typer.Option(min=0, help="Stop strings of the call.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns alone and beside the call.")] = 3,
    url: Annotated[str | None, typer.Option(help="A server that runs. [one is started]")] = None,
    manifest: Annotated[
        Path, typer.Option("-f", "--file", help="Manifest of the service to start.")
    ] = Path("examples/tandem-tiny/local.yaml"),
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measure the gaps of a stream while another caller sends thousands of prompts at once."""
    with report_errors():
        from benchmarks.large_calls.session import Settings, run_all

        run_all(
            Settings(
                num_prompts=prompts,
                num_stop_strings=stop_strings,
                rounds=rounds,
                url=url,
                manifest=manifest,
            ),
            out=out,
        )
