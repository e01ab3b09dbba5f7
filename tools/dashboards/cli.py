"""The command `python -m tools.dashboards`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tools.dashboards.boards import write
from tools.dashboards.draw import DrawnTime, draw_all

_app = typer.Typer(add_completion=False, no_args_is_help=False, invoke_without_command=True)


def main() -> None:
    """Entry point of the command."""
    _app()


@_app.callback()
def write_files(context: typer.Context) -> None:
    """Write the dashboards into charts/tandem/dashboards."""
    if context.invoked_subcommand is None:
        write()


@_app.command()
def draw(
    *,
    prometheus: Annotated[str, typer.Option(help="URL of a Prometheus.")],
    namespace: Annotated[str, typer.Option(help="Namespace of the service.")],
    service: Annotated[str, typer.Option(help="The service.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")],
    minutes: Annotated[float, typer.Option(help="Time that is drawn, up to now.")] = 60,
    window: Annotated[str, typer.Option(help="Window of rates, such as 1m.")] = "1m",
) -> None:
    """Draw every panel of every dashboard, a picture a dashboard, from the data of a Prometheus."""
    end = time.time()
    shown = DrawnTime(start=end - 60 * minutes, end=end, window=window)
    values = {"namespace": namespace, "service": service, "pod": ".*"}
    for file in draw_all(prometheus, values, shown, out):
        typer.echo(str(file))
