"""The `tandem` command: names, options and help; the work is done in `tandem_serve.commands`.

Other packages add commands by the entry-point group `tandem.commands`.
"""
# ruff: noqa: PLC0415  # help and completion answer at once: a command's imports come when it runs

from importlib.metadata import entry_points
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from tandem_engine.api.device_facts import Device

COMMANDS_GROUP: Final = "tandem.commands"

ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="TANDEM_API_KEY", help="API key, if the service requires one.", show_default=False
    ),
]


app = typer.Typer(
    name="tandem",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ManifestFile = Annotated[
    Path,
    typer.Option(
        "-f",
        "--file",
        help="Manifest of an InferenceService; [bold]-[/bold] reads standard input.",
        show_default=False,
    ),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show logs and full errors.")]


def main() -> None:
    """Run the command line."""
    add_commands_of_others()
    app()


def add_commands_of_others(to: typer.Typer = app) -> None:
    """Add each entry point of `tandem.commands`: a typer application, or one function."""
    for point in entry_points(group=COMMANDS_GROUP):
        command = point.load()
        if isinstance(command, typer.Typer):
            to.add_typer(command, name=point.name)
        else:
            to.command(point.name)(command)


def _show_version(*, value: bool) -> None:
    if value:
        typer.echo(f"tandem {version_of('tandem')}")
        raise typer.Exit


@app.callback(
    epilog="[bold]Start here[/bold]\n\ntandem serve -f isvc.yaml, then, elsewhere: tandem chat"
)
def tandem(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Serve large language models behind an OpenAI-compatible endpoint."""


@app.command(
    epilog="[bold]Examples[/bold]\n\ntandem serve -f isvc.yaml\n\n"
    "tandem serve -f isvc.yaml --port 9000 --detach"
)
def serve(
    file: ManifestFile,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            "--api-keys",
            metavar="FOLDER",
            help="Require one of the API keys in this folder, a file for each.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "-d",
            "--detach",
            help="Return once the service is up; update it if it already runs.",
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Run a service on this machine until Ctrl-C; no Kubernetes needed."""
    from tandem_serve.commands.serve import serve as run

    run(file, host=host, port=port, api_keys=api_keys, detach=detach, verbose=verbose)


@app.command(
    epilog="[bold]Examples[/bold]\n\ntandem apply -f isvc.yaml\n\n"
    "Changes are [green]live[/green] (running replicas apply it between two steps), "
    "[cyan]in place[/cyan] (running replicas stay) or [yellow]replace[/yellow] (new replicas take "
    "the place of the running ones)."
)
def apply(file: ManifestFile, *, verbose: Verbose = False) -> None:
    """Apply a manifest to a running local service; show each change and its cost."""
    from tandem_serve.commands.apply import apply as run

    run(file, verbose=verbose)


@app.command(epilog="[bold]Examples[/bold]\n\ntandem status")
def status() -> None:
    """Show the services that run on this machine."""
    from tandem_serve.commands.status import status as run

    run()


@app.command(epilog="[bold]Examples[/bold]\n\ntandem stop\n\ntandem stop tiny\n\ntandem stop --all")
def stop(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the service; optional when only one runs.", show_default=False
        ),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Stop every service on this machine.")
    ] = False,
) -> None:
    """Stop a service on this machine, with everything that belongs to it."""
    from tandem_serve.commands.stop import stop as run

    run(name, everything=everything)


@app.command(
    epilog="[bold]Examples[/bold]\n\ntandem validate -f isvc.yaml\n\n"
    "cat isvc.yaml | tandem validate -f -"
)
def validate(file: ManifestFile) -> None:
    """Print a manifest with every default filled in, or all of its problems."""
    from tandem_serve.commands.validate import validate as run

    run(file)


@app.command(
    epilog="[bold]Examples[/bold]\n\ntandem quantize models/qwen3 models/qwen3-w8a8\n\n"
    "tandem quantize models/qwen3 models/qwen3-w8a8 --head --format msmodelslim"
)
def quantize(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="Folder of a checkpoint in float.", show_default=False),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder to write; it must be new or empty.", show_default=False
        ),
    ],
    *,
    head: Annotated[
        bool,
        typer.Option("--head", help="Quantise the output head, too: smaller and less exact."),
    ] = False,
    output_format: Annotated[
        Literal["compressed-tensors", "msmodelslim"],
        typer.Option(
            "--format",
            help="compressed-tensors for Tandem and vLLM, msmodelslim for Tandem and MindIE.",
        ),
    ] = "compressed-tensors",
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the error of every layer, not only the ten worst.")
    ] = False,
) -> None:
    """Quantise the linear layers of a checkpoint to 8 bits (W8A8)."""
    from tandem_serve.commands.quantize import quantize as run

    run(source, target, output_format=output_format, head=head, show_all=show_all)


@app.command(epilog="[bold]Examples[/bold]\n\ntandem doctor\n\ntandem doctor npu")
def doctor(
    device: Annotated[Device, typer.Argument(metavar="DEVICE", help="Device to examine.")] = "cpu",
) -> None:
    """Compare what a device computes with the reference, kernel by kernel."""
    from tandem_serve.commands.doctor import doctor as run

    run(device)


@app.command(
    epilog='[bold]Examples[/bold]\n\ntandem chat\n\ntandem chat -m "12+30=?" '
    "--temperature 0\n\n"
    'tandem chat --url http://10.0.0.7:8000 --system "Answer in one word."'
)
def chat(
    *,
    message: Annotated[
        str | None,
        typer.Option("-m", "--message", help="Send this message, print the answer, and exit."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="URL of the service; default: the one that runs here.", show_default=False
        ),
    ] = None,
    api_key: ApiKey = None,
    system: Annotated[str | None, typer.Option(help="Text before the conversation.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 takes the likeliest token every time.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
) -> None:
    """Talk to a model in the terminal."""
    from tandem_serve.commands.chat import chat as run

    run(
        message,
        url=url,
        api_key=api_key,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
    )


@app.command(
    epilog="[bold]Examples[/bold]\n\ntandem steps\n\ntandem steps tiny --once\n\n"
    "tandem steps --follow --json | jq .blocked_by.text\n\n"
    "tandem steps --url http://10.0.0.7:8000 -n 40"
)
def steps(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the service; optional when only one runs.", show_default=False
        ),
    ] = None,
    *,
    url: Annotated[
        str | None,
        typer.Option(help="URL of a service, in place of NAME.", show_default=False),
    ] = None,
    api_key: ApiKey = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=512, help="Steps to show.")
    ] = 20,
    every: Annotated[
        float, typer.Option(min=0.05, max=60.0, help="Seconds between two reads.")
    ] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Print the table once, and exit.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print each step in a line, as it comes.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each step.")
    ] = False,
) -> None:
    """Watch the engine's steps: their content, and why other sequences waited."""
    from tandem_serve.commands.steps import steps as run

    run(
        name,
        url=url,
        api_key=api_key,
        limit=limit,
        every_s=every,
        once=once,
        follow=follow,
        as_json=as_json,
    )


@app.command(
    epilog="[bold]Examples[/bold]\n\ntandem timeline -o trace.json\n\n"
    "tandem timeline tiny --steps 5 -o trace.json --png timeline.png\n\n"
    "tandem timeline --url http://10.0.0.7:8000 --within 60 -o trace.json\n\n"
    "Open the file at https://ui.perfetto.dev or chrome://tracing."
)
def timeline(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the service; optional when only one runs.", show_default=False
        ),
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File of the trace, in JSON.", show_default=False
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option(help="URL of a service, in place of NAME.", show_default=False),
    ] = None,
    api_key: ApiKey = None,
    num_steps: Annotated[
        int, typer.Option("--steps", min=1, max=512, help="Steps to record.")
    ] = 20,
    within: Annotated[
        float,
        typer.Option(min=0.1, max=60.0, help="Seconds after which fewer steps are enough."),
    ] = 10.0,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png", metavar="FILE", help="Draw a picture of it, too.", show_default=False
        ),
    ] = None,
) -> None:
    """Record what each stream of each rank does in the next steps, as a trace for Perfetto."""
    from tandem_serve.commands.timeline import timeline as run

    run(
        name, url=url, api_key=api_key, num_steps=num_steps, within_s=within, output=output, png=png
    )
