"""`tandem get`, `explain`, `replay`, `export`: names, options, help; the work is in commands/."""
# ruff: noqa: PLC0415  # help and completion answer at once: a command's imports come when it runs

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Add the autoscaler's last 20 decisions.")
    ] = False,
) -> None:
    """Explain in five lines the state of a service of a Kubernetes, and what to do next.

    [bold]Examples[/bold]

    tandem explain tiny

    tandem explain tiny -n models --decisions
    """
    with _needs_the_operator_extra():
        from tandem_operator.commands.explain import explain as run
    run(name, namespace, context=context, decisions=decisions)


def replay(
    name: Annotated[str, typer.Argument(help="The service.", show_default=False)],
    *,
    namespace: Namespace = None,
    context: Context = None,
    prometheus: Annotated[
        str,
        typer.Option(
            envvar="TANDEM_PROMETHEUS",
            help="Prometheus that has scraped the replicas and the operator.",
        ),
    ] = "http://localhost:9090",
    since: Annotated[str, typer.Option(help="Span of time, such as 90m, 6h or 7d.")] = "6h",
    file: Annotated[
        Path | None,
        typer.Option(
            "-f",
            "--file",
            help="Manifest whose spec.scaling and spec.slo are to be tried.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[int, typer.Option(min=1, max=300, help="Seconds between decisions.")] = 15,
    window: Annotated[
        int, typer.Option(min=10, max=3600, help="Seconds of the window of latencies and rates.")
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print every moment, as JSON.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw load and replicas into this file (.png, .svg).", show_default=False
        ),
    ] = None,
) -> None:
    """Decide once more over the past of a service, as Prometheus has it, by its policy or another.

    Where the replayed number of replicas is not the one that ran, the recorded latencies say
    nothing about it, and the predicted load alone decides.

    [bold]Examples[/bold]

    kubectl port-forward -n monitoring svc/prometheus-operated 9090 &

    tandem replay tiny --since 6h

    tandem replay tiny --since 7d -f cautious.yaml --plot replay.png
    """
    with _needs_the_operator_extra():
        from tandem_operator.commands.replay import ReplayOptions, run_replay
    options = ReplayOptions(
        prometheus=prometheus,
        since=since,
        manifest=file,
        step_s=step,
        window_s=window,
        as_json=as_json,
        plot=plot,
    )
    run_replay(name, namespace, context=context, options=options)


export = typer.Typer(
    help="Write manifests for other systems, from a service of a Kubernetes.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@export.callback()
def _export() -> None:
    """Keep `keda` a command of its own: Typer takes an only command for the group itself."""


@export.command("keda")
def export_keda(
    name: Annotated[str, typer.Argument(help="The service.", show_default=False)],
    *,
    namespace: Namespace = None,
    context: Context = None,
    prometheus: Annotated[
        str,
        typer.Option(metavar="URL", help="Prometheus, as KEDA's operator reaches it."),
    ] = "http://prometheus-operated.monitoring.svc:9090",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write; left out, standard output.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a KEDA ScaledObject that scales a service by its spec.slo.

    The service must have mode: External, in which another autoscaler sets its replicas.

    [bold]Examples[/bold]

    tandem export keda tiny | kubectl apply -f -

    tandem export keda tiny -n models --prometheus http://prometheus.example:9090 -o keda.yaml
    """
    with _needs_the_operator_extra():
        from tandem_operator.commands.export_keda import export_keda as run
    run(name, namespace, context=context, prometheus=prometheus, output=output)


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
