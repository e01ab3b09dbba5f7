"""`tandem explain`: the state of a service and its causes, in lines for each of them."""

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
from tandem_operator.commands.replica_lines import (
    DEVICE,
    DRAFTS,
    MEMORY,
    MICRO_BATCHES,
    device_line,
    draft_line,
    memory_lines,
    micro_batch_line,
)
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
        now = now_text()
        lines = explain_service(
            service,
            cluster.ray_service(name, namespace),
            cluster.pods({SERVICE: name}, namespace),
            cluster.events(namespace),
            now,
        )
    labelled = list(zip(LABELS, lines, strict=True))
    if micro_batches := micro_batch_line(service, now):
        labelled.append((MICRO_BATCHES, micro_batches))
    if drafts := draft_line(service, now):
        labelled.append((DRAFTS, drafts))
    if device := device_line(service, now):
        labelled.append((DEVICE, device))
    labelled += [(MEMORY, line) for line in memory_lines(service, now)]
    _print(labelled)
    if decisions:
        for line in decision_lines(service, now):
            typer.echo(line)


def _print(lines: list[tuple[str, str]]) -> None:
    """Print lines behind their labels; wrapped on a terminal, whole elsewhere."""
    out = Console(highlight=False)
    if not out.is_terminal:
        for label, line in lines:
            out.print(Text(f"{label + ':':<13}{line}"), soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    for label, line in lines:
        table.add_row(Text(label, style="bold"), Text(line))
    out.print(table)
