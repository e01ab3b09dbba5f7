"""`python -m tools.cluster`: a throw-away Kubernetes from the command line."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from tandem_serve.commands.common import (
    EXIT_FAILED,
    Progress,
    err,
    exit_on_signals,
    out,
    print_error,
)
from tools.cluster import keda as keda_parts
from tools.cluster import kuberay as kuberay_parts
from tools.cluster import monitoring as monitoring_parts
from tools.cluster import registry
from tools.cluster.cluster import DEFAULT_NAME, Cluster
from tools.cluster.debian import Package
from tools.cluster.errors import ClusterError
from tools.cluster.prepare import agree, prepare
from tools.cluster.require import require_system
from tools.cluster.state import Phase

_MIB: Final = 1024 * 1024

app = typer.Typer(
    name="python -m tools.cluster",
    help="A one-node Kubernetes without Docker, to use and throw away.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Option("--name", help="Name of the cluster.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the logs of the parts.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Download without asking.")]


def main() -> None:
    """Run the command line."""
    app()


@app.command(
    epilog="[bold]Examples[/bold]\n\npython -m tools.cluster up\n\n"
    "python -m tools.cluster up --name try --mount ~/models/tiny:/models/tiny"
)
def up(
    *,
    name: Name = DEFAULT_NAME,
    mount: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SRC:DST",
            help="Show a folder of this machine on the node, read-only; may be repeated.",
        ),
    ] = None,
    owner: Annotated[
        int | None, typer.Option(metavar="PID", help="End the cluster when this process ends.")
    ] = None,
    yes: Yes = False,
    verbose: Verbose = False,
) -> None:
    """Start a cluster, and say how to reach it; the first time builds its parts."""
    with _errors_in_words(), exit_on_signals():
        running = Cluster.find(name)
        if running:
            out.print(f"Cluster {name} is up already.")
            _say_how_to_use(running)
            return
        mounts = _parse_mounts(mount or ())
        with Progress(verbose=verbose) as progress:
            prepared = prepare(progress, agree if yes else _ask)
            cluster = Cluster.start(
                name,
                mounts=mounts,
                owner=owner,
                prepared=prepared,
                progress=progress,
                on_log=_print_log if verbose else None,
            )
        _say_how_to_use(cluster)


@app.command(
    epilog="[bold]Examples[/bold]\n\npython -m tools.cluster down\n\n"
    "python -m tools.cluster down --all"
)
def down(
    *,
    name: Name = DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="End every cluster.")] = False,
) -> None:
    """End a cluster, with everything that belongs to it; that there is none is no error."""
    # A user without root, who can start no cluster, has none to end.
    if not everything and registry.phase_of(name) is None:
        out.print(f"There is no cluster {name}.")
        return
    with _errors_in_words(), Progress(verbose=False) as progress:
        for ended in registry.names() if everything else [name]:
            with progress.phase(f"end cluster {ended}"):
                registry.end(ended)


@app.command(epilog="[bold]Examples[/bold]\n\npython -m tools.cluster status")
def status() -> None:
    """Show the clusters of this user and their parts."""
    with _errors_in_words():
        names = registry.names()
        if not names:
            out.print("No cluster runs; start one with: python -m tools.cluster up")
            return
        table = Table("cluster", "part", "state", "pid on the node", "memory", box=None)
        for name in names:
            for row in _rows(name):
                table.add_row(*row)
        out.print(table)


@app.command(epilog="[bold]Examples[/bold]\n\npython -m tools.cluster build")
def build(*, yes: Yes = False) -> None:
    """Build, download and pack all that a cluster needs, and start none."""
    with _errors_in_words(), exit_on_signals(), Progress(verbose=False) as progress:
        prepare(progress, agree if yes else _ask)
    out.print("All parts are there; start a cluster with: python -m tools.cluster up")


@app.command(
    epilog="[bold]Examples[/bold]\n\npython -m tools.cluster exec -- ctr -n k8s.io images ls\n\n"
    "python -m tools.cluster exec --name try -- bash",
    name="exec",
)
def execute(
    command: Annotated[list[str], typer.Argument(metavar="CMD...", show_default=False)],
    *,
    name: Name = DEFAULT_NAME,
) -> None:
    """Run a command on the node, with the cluster's PATH and KUBECONFIG."""
    with _errors_in_words():
        cluster = _find(name)
        line, environment = cluster.node_command(command), cluster.node_environment
        os.execvpe(line[0], line, environment)  # noqa: S606


@app.command(epilog="[bold]Examples[/bold]\n\npython -m tools.cluster kuberay")
def kuberay(*, name: Name = DEFAULT_NAME) -> None:
    """Install KubeRay into a cluster and wait until it is available."""
    with _errors_in_words(), exit_on_signals(), Progress(verbose=False) as progress:
        kuberay_parts.install(_find(name), progress)


@app.command(
    epilog="[bold]Examples[/bold]\n\npython -m tools.cluster monitoring\n\n"
    "kubectl get prometheuses,alertmanagers,podmonitors -A"
)
def monitoring(*, name: Name = DEFAULT_NAME) -> None:
    """Install the Prometheus operator, Prometheus and Alertmanager; first builds them."""
    with _errors_in_words(), exit_on_signals(), Progress(verbose=False) as progress:
        monitoring_parts.install(_find(name), progress)
    out.print(f"Prometheus answers at {monitoring_parts.PROMETHEUS_URL}, inside the cluster.")


@app.command(epilog="[bold]Examples[/bold]\n\npython -m tools.cluster keda")
def keda(*, name: Name = DEFAULT_NAME) -> None:
    """Install KEDA and wait until it serves external metrics; first builds it."""
    with _errors_in_words(), exit_on_signals(), Progress(verbose=False) as progress:
        keda_parts.install(_find(name), progress)


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        require_system()
        yield
    except ClusterError as error:
        print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None


def _find(name: str) -> Cluster:
    cluster = Cluster.find(name)
    if cluster is None:
        there = ", ".join(cluster.name for cluster in Cluster.all()) or "none"
        raise ClusterError(
            f"no cluster {name} runs (running: {there}); start it with:"
            f" python -m tools.cluster up --name {name}"
        )
    return cluster


def _parse_mounts(texts: Sequence[str]) -> dict[Path, str]:
    parsed = list(map(_parse_mount, texts))
    mounts = dict(parsed)
    if len(mounts) < len(parsed):
        raise ClusterError("--mount: one SRC is given twice; show it once, or a folder inside it")
    return mounts


def _parse_mount(text: str) -> tuple[Path, str]:
    source, _, target = text.rpartition(":")
    folder = Path(source).expanduser()
    if not source or not target.startswith("/"):
        raise ClusterError(f"--mount {text}: write SRC:DST, where DST begins with /")
    if not folder.exists():
        raise ClusterError(f"--mount {text}: there is no {folder} on this machine")
    return folder, target


def _ask(packages: Sequence[Package]) -> bool:
    size = sum(package.size for package in packages) / _MIB
    err.print(
        f"The node needs {len(packages)} Debian packages that this machine does not have"
        f" ({size:.0f} MiB):\n  {', '.join(package.name for package in packages)}\n"
        "They are unpacked into the cache for the sandbox alone; nothing is installed."
    )
    if not sys.stdin.isatty():
        err.print("There is no terminal to ask on, so they are downloaded.")
        return True
    return typer.confirm("Download them?", default=True, err=True)


def _print_log(line: str) -> None:
    err.print(f"[dim]{escape(line)}[/dim]")


def _say_how_to_use(cluster: Cluster) -> None:
    flag = "" if cluster.name == DEFAULT_NAME else f" --name {cluster.name}"
    out.print(f"\nexport KUBECONFIG={cluster.kubeconfig}")
    out.print(f"export PATH={cluster.bin_dir}:$PATH  # kubectl, helm")
    out.print(f"\nOn the node: python -m tools.cluster exec{flag} -- CMD")
    out.print(f"End it:      python -m tools.cluster down{flag}")


def _rows(name: str) -> list[tuple[str, str, str, str, str]]:
    phase = registry.phase_of(name)
    cluster = Cluster.find(name)
    if phase is not Phase.READY or cluster is None:
        return [(name, "", f"{phase or 'gone'}", "", "")]
    rows = [
        (name, part, status.state, str(status.pid), f"{status.resident_bytes / _MIB:.0f} MiB")
        for part, status in cluster.parts().items()
    ]
    return [*rows, (name, "all", str(phase), "", f"{cluster.memory() / _MIB:.0f} MiB")]
