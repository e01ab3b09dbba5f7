"""Errors of the commands: one sentence each, with a way out."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tandem_operator.k8s.kubeconfig import NoCluster


class ClusterError(Exception):
    """A command cannot continue; the text is one sentence with a way out."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an error that the user can resolve into a sentence and exit code 1."""
    try:
        yield
    except (ClusterError, NoCluster) as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None


def printable(text: str) -> str:
    """Return the text as one line, without characters that steer a terminal."""
    line = " ".join(text.split())
    return "".join(char for char in line if char.isprintable())
