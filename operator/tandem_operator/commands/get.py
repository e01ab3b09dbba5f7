"""`tandem get`: the services of a Kubernetes as a table."""

from collections.abc import Iterable, Sequence
from typing import Final

import typer

from tandem_operator import reasons
from tandem_operator.clock import now_text
from tandem_operator.commands.cluster import EVERYWHERE, Cluster
from tandem_operator.commands.errors import exit_on_error
from tandem_operator.commands.text import age_between
from tandem_operator.k8s.objects import Object
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.status.conditions import find_condition

Row = tuple[str, ...]

HEADER: Final[Row] = (
    "NAMESPACE",
    "NAME",
    "READY",
    "REPLICAS",
    "MODEL",
    "URL",
    "REASON",
    "AGE",
)
_GAP: Final = 3
_WIDEST: Final[Row] = ("", "", "Unknown", "", "", "", reasons.DEADLINE_EXCEEDED, "")
"""Longest texts of some columns, since later rows may have them."""


def get(namespace: str | None, *, everywhere: bool, context: str | None, watch: bool) -> None:
    """Print the services of a namespace, or of all; with `watch` also each that changes."""
    with exit_on_error():
        cluster = Cluster.connect(context)
        scope = EVERYWHERE if everywhere else namespace or cluster.namespace
        services = cluster.services(scope)
        if not services and not watch:
            typer.echo(f"No services in {'any namespace' if everywhere else scope}.", err=True)
            return
        rows = [row_of(service, now_text()) for service in services]
        widths = widths_of([HEADER, *rows, *([_WIDEST] if watch else [])])
        first = 0 if everywhere else 1
        for row in [HEADER, *rows]:
            typer.echo(line_of(row, widths, first=first))
        if watch:
            _follow(cluster, scope, widths, first=first, shown=set(rows))


def row_of(service: Object, now: str) -> Row:
    """Return the service as a row; unknown cells stay empty."""
    metadata, status = service["metadata"], service.get("status", {})
    return (
        metadata["namespace"],
        metadata["name"],
        find_condition(status, "Ready").get("status", ""),
        status.get("replicas", {}).get("summary", ""),
        status.get("model", ""),
        status.get("url", ""),
        "Deleting" if is_being_deleted(service) else status.get("reason", ""),
        age_between(metadata["creationTimestamp"], now),
    )


def widths_of(rows: Iterable[Row]) -> list[int]:
    """Characters of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def line_of(row: Row, widths: Sequence[int], *, first: int) -> str:
    """Return the row from its column `first` on."""
    cells = [text.ljust(width + _GAP) for text, width in zip(row, widths, strict=True)]
    return "".join(cells[first:]).rstrip()


def _follow(
    cluster: Cluster, scope: str, widths: Sequence[int], *, first: int, shown: set[Row]
) -> None:
    """Print each service that changes, until Ctrl-C."""
    # A row that differs only in its age, the last cell, is not printed again.
    last = {row[:2]: row[:-1] for row in shown}
    try:
        for service in cluster.changes(scope):
            row = row_of(service, now_text())
            if last.get(row[:2]) != row[:-1]:
                last[row[:2]] = row[:-1]
                typer.echo(line_of(row, widths, first=first))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
