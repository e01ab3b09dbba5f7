"""`python -m benchmarks.serving`: options, help, exit codes.

Exit codes: 0 measured, 1 failed or no request succeeded, 2 wrong usage,
130 Ctrl-C or SIGTERM.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.case import parse_case
from benchmarks.serving.command_line import make_app, report_errors
from benchmarks.serving.settings import (
    EndpointSettings,
    LatencyTargets,
    LoadSettings,
    parse_token_ids,
)

DEFAULT_MANIFEST: Final = Path("examples/tandem-tiny/local.yaml")

_EPILOG: Final = """\
[bold]Examples[/bold]

Start the example service, measure three cases, end it:

    python -m benchmarks.serving --case 1x32x64 --case 4x128x64 --case 16x256x64

A running server, eight arrivals a second, and what share met two targets:

    python -m benchmarks.serving --url http://127.0.0.1:8000/v1 --case 0x256x64 --rate 8 \
--ttft-ms 500 --tpot-ms 50

A hundred requests at once:

    python -m benchmarks.serving --case 0x64x32 --rate inf --requests 100

The first 200 requests of a real trace, twice as fast as they came:

    python -m benchmarks.serving --trace AzureLLMInferenceTrace_conv.csv --limit 200 --speed 2

docs/benchmarks/method.md explains the figures.
"""

app = make_app()

_LOAD: Final = "Load"
_SERVER: Final = "Server"
_FIGURES: Final = "Figures"


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.serving")


@app.command(epilog=_EPILOG)
def serving(
    *,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="CONCURRENCYxINPUTxOUTPUT, lengths in tokens; several make a table.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Poisson arrivals a second, or inf; concurrency is then a cap, 0 for none.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests of each case, in place of a duration.", rich_help_panel=_LOAD
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option(help="Seconds in which each case sends requests.", rich_help_panel=_LOAD),
    ] = 20.0,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Requests before each case that are not counted; default: the concurrency.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.", rich_help_panel=_LOAD)] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens, to be replayed.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Speed-up of the replay.", rich_help_panel=_LOAD)
    ] = 1.0,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Number of rows to replay.", rich_help_panel=_LOAD),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible server; default: one is started.", rich_help_panel=_SERVER
        ),
    ] = None,
    manifest: Annotated[
        Path,
        typer.Option(
            "-f", "--file", help="Manifest of the service to start.", rich_help_panel=_SERVER
        ),
    ] = DEFAULT_MANIFEST,
    model: Annotated[
        str | None,
        typer.Option(help="Default: the first that the server lists.", rich_help_panel=_SERVER),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="OPENAI_API_KEY",
            show_envvar=True,
            help="API key of the server.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    token_ids: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST",
            help="Token ids of prompts, for a server without /tokenize.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, help="Time limit of a request, in seconds.", rich_help_panel=_SERVER),
    ] = 600.0,
    ttft_ms: Annotated[
        float | None,
        typer.Option(help="Target time to the first token.", rich_help_panel=_FIGURES),
    ] = None,
    tpot_ms: Annotated[
        float | None,
        typer.Option(help="Target time of each further token.", rich_help_panel=_FIGURES),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for result.json and result.png, which are replaced.",
            rich_help_panel=_FIGURES,
        ),
    ] = None,
) -> None:
    """Measure a server that speaks OpenAI's protocol: throughput, TTFT, TPOT, goodput."""
    with report_errors():
        load = LoadSettings(
            cases=tuple(map(parse_case, case or ())),
            trace=trace,
            speed=speed,
            limit=limit,
            rate=rate,
            num_requests=requests,
            duration_s=duration,
            num_warmup=warmup,
            seed=seed,
        )
        endpoint = EndpointSettings(
            url=url,
            manifest=manifest,
            model=model,
            api_key=api_key,
            token_ids=None if token_ids is None else parse_token_ids(token_ids),
            timeout_s=timeout,
        )
        targets = LatencyTargets(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
        from benchmarks.serving.session import measure

        measure(load, endpoint, targets, out=out)
