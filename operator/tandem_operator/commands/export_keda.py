"""`tandem export keda`: a KEDA ScaledObject from the SLO of a service."""

from pathlib import Path

import typer
import yaml

from tandem_operator.autoscaler.keda import NotExportable, scaled_object
from tandem_operator.commands.cluster import Cluster
from tandem_operator.commands.errors import ClusterError, exit_on_error
from tandem_operator.crd.parse import parse_object
from tandem_serve.api.manifest import ManifestError


def export_keda(
    name: str,
    namespace: str | None,
    *,
    context: str | None,
    prometheus: str,
    output: Path | None,
) -> None:
    """Write the ScaledObject of the service `name` to a file, or print it."""
    with exit_on_error():
        cluster = Cluster.connect(context)
        namespace = namespace or cluster.namespace
        text = _text(cluster.service(name, namespace), namespace, prometheus)
        if output is not None:
            _write(output, text)
            return
    typer.echo(text, nl=False)


def _text(isvc: dict[str, object], namespace: str, prometheus: str) -> str:
    if not prometheus.startswith(("http://", "https://")):
        raise ClusterError(
            f"--prometheus {prometheus} is no URL; write http:// or https://, a host and its port, "
            "as KEDA's operator reaches it"
        )
    try:
        document = scaled_object(parse_object(isvc), namespace, prometheus)
    except (ManifestError, NotExportable) as error:
        raise ClusterError(str(error)) from error
    return yaml.safe_dump(document, sort_keys=False, width=10**6)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"--output {file} cannot be written: {error.strerror}") from error
