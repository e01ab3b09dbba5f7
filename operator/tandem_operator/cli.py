"""`tandem get` and `tandem explain`: names, options and help; the work is in commands/."""
# ruff: noqa: PLC0415  # help and completion answer at once: a command's imports come when it runs

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Namespace = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        help="Namespace; left out, the context's.",
        show_default=False,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Context of the kubeconfig; left out, the current one.", show_default=False),
]


def get(
    *,
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="Show those of every namespace.")
    ] = False,
    context: Context = None,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Go on and show what changes, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the services of a Kubernetes.

    [bold]Examples[/bold]

    tandem get

    tandem get -A --watch
    """
    with _needs_the_operator_extra():
        from tandem_operator.commands.get import get as run
    run(
        None if all_namespaces else namespace,
        everywhere=all_namespaces,
        context=context,
        watch=watch,
    )


def explain(
    name: Annotated[str, typer.Argument(help="The service.", show_default=False)],
    *,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Explain in five lines the state of a service of a Kubernetes, and what to do next.

    [bold]Examples[/bold]

    tandem explain tiny

    tandem explain tiny -n models
    """
    with _needs_the_operator_extra():
        from tandem_operator.commands.explain import explain as run
    run(name, namespace, context=context)


@contextmanager
def _needs_the_operator_extra() -> Iterator[None]:
    """Turn a missing package into the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tandem"):
            raise
        typer.echo(
            f"error: This command needs the package {error.name}, which is not installed; "
            "in Tandem's checkout run: pip install '.[operator]'",
            err=True,
        )
        raise typer.Exit(1) from None
