"""The command `tandem-operator`."""

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Final

import typer

from tandem_operator.autoscaler.replicas import REPLICA_ADDRESS
from tandem_operator.health import PortTaken
from tandem_operator.k8s.connection import connect, is_in_pod
from tandem_operator.k8s.kubeconfig import NoCluster
from tandem_operator.logs import LogFormat, set_up_logs
from tandem_operator.manager import Options, run
from tandem_operator.ray.client import DEFAULT_ADDRESS
from tandem_operator.settings import OperatorSettings, SettingsError, load_settings

_DEFAULT_CONFIG: Final = Path("/etc/tandem/operator.yaml")
_EXIT_USAGE: Final = 2
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the command."""
    _app()


@_app.command()
def operate(
    *,
    config: Annotated[
        Path, typer.Option(help="The settings: YAML, read once.", show_default=True)
    ] = _DEFAULT_CONFIG,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Serve this namespace only; repeat for more. Default: as the settings say."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Context of the kubeconfig. Default: the pod's own rights, or the current context."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /healthz, /readyz and /metrics.")
    ] = 8080,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            help="Namespace of the Lease and of the key of Ray's tokens. Default: the pod's."
        ),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(help="Name of this process in leader election. Default: the host's name."),
    ] = None,
    ray_address: Annotated[
        str,
        typer.Option(help="Ray's REST interface; may contain {ip}, {cluster} and {namespace}."),
    ] = DEFAULT_ADDRESS,
    replica_address: Annotated[
        str,
        typer.Option(help="A replica's metrics; may contain {ip} and {pod}."),
    ] = REPLICA_ADDRESS,
    log_format: Annotated[
        LogFormat, typer.Option(help="Log lines for people or for machines.")
    ] = LogFormat.TEXT,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log every request and watch, too.")
    ] = False,
) -> None:
    """Turn InferenceServices into RayServices, and keep them so.

    In a pod it needs no options. On a workstation:

        tandem-operator --config operator.yaml --context dev --namespace demo

    It ends with 0 after SIGTERM, with 2 when its settings are wrong, and with 3 when it has lost
    its Lease to another; Kubernetes then restarts it.
    """
    set_up_logs(log_format, verbose=verbose)

    async def connect_and_run() -> int:
        connection = await connect(context)
        options = Options(
            connection=connection,
            settings=_narrowed(load_settings(config), namespace),
            port=port,
            identity=identity or _identity(),
            lease_namespace=lease_namespace or connection.namespace,
            ray_address=_checked_address(ray_address),
            replica_address=_checked_replica_address(replica_address),
        )
        return await run(options)

    try:
        code = asyncio.run(connect_and_run())
    except (SettingsError, NoCluster, PortTaken) as error:
        typer.echo(f"tandem-operator: {error}", err=True)
        raise typer.Exit(_EXIT_USAGE) from None
    raise typer.Exit(code)


def _narrowed(settings: OperatorSettings, namespaces: list[str] | None) -> OperatorSettings:
    for name in namespaces or ():
        if not _NAMESPACE.fullmatch(name):
            raise typer.BadParameter(
                f"'{name}' is not the name of a namespace; use up to 63 lower-case letters, digits "
                "and '-', a letter or digit first and last",
                param_hint="--namespace",
            )
    return settings.model_copy(update={"namespaces": namespaces}) if namespaces else settings


def _checked_address(address: str) -> str:
    try:
        address.format(ip="10.0.0.1", cluster="tiny-abcde", namespace="demo")
    except (KeyError, IndexError, ValueError) as error:
        raise typer.BadParameter(
            f"'{address}' has another field than {{ip}}, {{cluster}} and {{namespace}}",
            param_hint="--ray-address",
        ) from error
    return address


def _checked_replica_address(address: str) -> str:
    try:
        address.format(ip="10.0.0.1", pod="tiny-abcde")
    except (KeyError, IndexError, ValueError) as error:
        raise typer.BadParameter(
            f"'{address}' has another field than {{ip}} and {{pod}}", param_hint="--replica-address"
        ) from error
    return address


def _identity() -> str:
    """The pod's name; outside a pod also the process, as one host may have several."""
    host = socket.gethostname()
    return host if is_in_pod() else f"{host}-{os.getpid()}"
