"""`tandem explain`: the state of a service and its causes, in five lines."""

from typing import Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem_operator.clock import now_text
from tandem_operator.commands.cluster import Cluster
from tandem_operator.commands.decisions import decision_lines
from tandem_operator.commands.errors import exit_on_error
from tandem_operator.commands.explanation import explain as explain_service
from tandem_operator.k8s.names import SERVICE

LABELS: Final = ("state", "replicas", "change", "in the way", "next")


def explain(
    name: str, namespace: str | None, *, context: str | None, decisions: bool = False
) -> None:
    """Print state, replicas, change and blocker of the service `name`, and what to do next.

    `decisions` adds those of the autoscaler.
    """
    with exit_on_error():
        cluster = Cluster.connect(context)
        namespace = namespace or cluster.namespace
        service = cluster.service(name, namespace)
        lines = explain_service(
            service,
            cluster.ray_service(name, namespace),
            cluster.pods({SERVICE: name}, namespace),
            cluster.events(namespace),
            now_text(),
        )
    _print(lines)
    if decisions:
        for line in decision_lines(service, now_text()):
            typer.echo(line)


def _print(lines: list[str]) -> None:
    """Print the lines behind their labels; wrapped on a terminal, whole elsewhere."""
    out = Console(highlight=False)
    if not out.is_terminal:
        for label, line in zip(LABELS, lines, strict=True):
            out.print(Text(f"{label + ':':<12}{line}"), soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    for label, line in zip(LABELS, lines, strict=True):
        table.add_row(Text(label, style="bold"), Text(line))
    out.print(table)
