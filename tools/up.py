"""`make up`: a Kubernetes, KubeRay, Tandem by Helm, tandem-tiny, and one streamed answer.

    python -m tools.up                        on a throw-away Kubernetes of its own
    TANDEM_CONTEXT=name python -m tools.up    on a cluster of yours
    TANDEM_CONTEXT=current python -m tools.up on the one that kubectl points at

A cluster of yours needs KubeRay, images of Tandem that its nodes can pull (TANDEM_VALUES names a
values file of charts/tandem that says which), and the checkpoint at /models/tandem-tiny on a node.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
import yaml

from tandem_operator.status.document import INSTALL_KUBERAY
from tandem_serve.commands.common import Progress, exit_on_signals, out, print_error
from tools.cluster import DEFAULT_NAME, Cluster, ClusterError, kuberay
from tools.cluster.paths import CHECKOUT
from tools.cluster.progress import Progress as Shows
from tools.development import NotReadable, development_values
from tools.kubernetes import CommandFailed, Kubernetes, python_folders

SERVICE: Final = "tiny"
NAMESPACE: Final = "tandem-system"
EXAMPLE: Final = Path("examples/tandem-tiny/isvc.yaml")
MODELS: Final = {CHECKOUT / "examples/tandem-tiny": "/models/tandem-tiny"}
QUESTION: Final = "47+38=?"
_CHART: Final = CHECKOUT / "charts/tandem"
_READY_S: Final = 900.0
_POLL_S: Final = 0.3


def main() -> None:
    """Entry point of the command."""
    typer.run(up)


def up(
    context: Annotated[
        str | None,
        typer.Option(
            envvar="TANDEM_CONTEXT",
            help="A cluster of yours: a context of the kubeconfig, or `current`.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the throw-away cluster.")] = DEFAULT_NAME,
) -> None:
    """Start a Kubernetes with Tandem in it, serve tandem-tiny, and ask it something."""
    with exit_on_signals():
        try:
            _up(context, name)
        except (ClusterError, CommandFailed, NotReadable) as error:
            print_error(str(error))
            raise SystemExit(1) from None


def _up(context: str | None, name: str) -> None:
    with Progress(verbose=False) as progress:
        if context:
            kubernetes, values = _own(context), {}
        else:
            cluster = _throw_away(name, progress)
            kubernetes, values = Kubernetes.of_cluster(cluster), cluster_values(cluster)
        install_tandem(kubernetes, _chosen_values() or values, progress)
        _apply_example(kubernetes, progress)
        _wait_until_ready(kubernetes, progress)
        took = progress.seconds
    out.print(f"{SERVICE} is Ready after {took:.0f} s.\n")
    with endpoint(kubernetes, direct=context is None) as url:
        _ask(url)
    _say_what_next(kubernetes, own=context is not None)


def _own(context: str) -> Kubernetes:
    """The user's cluster, which must have KubeRay."""
    kubernetes = Kubernetes.of_context(context)
    if not kubernetes.has_kind("rayservices.ray.io"):
        raise CommandFailed(f"the cluster has no KubeRay; {INSTALL_KUBERAY}")
    return kubernetes


def _throw_away(name: str, progress: Progress) -> Cluster:
    """The throw-away cluster with KubeRay, started unless it runs."""
    cluster = Cluster.find(name)
    if cluster is None:
        cluster = Cluster.start(name, mounts=MODELS, progress=progress)
    kuberay.install(cluster, progress)
    return cluster


def cluster_values(cluster: Cluster) -> dict[str, Any]:
    """Values of the chart for a throw-away cluster: this checkout mounted into the pods.

    Raises:
        NotReadable: the pods could not read it.
    """
    venv, home = python_folders()
    return development_values(venv, home, CHECKOUT, caller=f"{cluster.addresses.caller}/32")


def _chosen_values() -> dict[str, Any] | None:
    """Values of the chart that the user has in a file; None: no file is named."""
    file = os.environ.get("TANDEM_VALUES")
    if file is None:
        return None
    try:
        values: dict[str, Any] = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise CommandFailed(f"TANDEM_VALUES {file} cannot be read: {error.strerror}") from None
    # The example's checkpoint is a folder of the node.
    return {**values, "settings": {"allowHostPath": True, **(values.get("settings") or {})}}


def install_tandem(kubernetes: Kubernetes, values: Mapping[str, Any], progress: Shows) -> None:
    """Install or upgrade the operator, and wait until it leads.

    Raises:
        CommandFailed: helm refused, or the operator does not start.
    """
    with progress.phase("Tandem, by Helm"):
        try:
            kubernetes.helm(
                "upgrade", "--install", "tandem", str(_CHART), f"--namespace={NAMESPACE}",
                "--create-namespace", "--wait", "--timeout=3m", values=values,
            )  # fmt: skip
        except CommandFailed as error:
            raise CommandFailed(f"{error}{_last_words(kubernetes)}") from None


def _last_words(kubernetes: Kubernetes) -> str:
    """Return the operator's last log line, mostly the reason why it does not start; empty: none."""
    try:
        said = kubernetes.kubectl(
            "logs", f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/name=tandem-operator",
            "--tail=3",
        )  # fmt: skip
    except CommandFailed:
        return ""
    return f"\nThe operator said last:\n{said.strip()}" if said.strip() else ""


def _apply_example(kubernetes: Kubernetes, progress: Progress) -> None:
    with progress.phase(f"kubectl apply -f {EXAMPLE}"):
        kubernetes.kubectl("apply", "-f", str(CHECKOUT / EXAMPLE))


def _wait_until_ready(kubernetes: Kubernetes, progress: Progress) -> None:
    deadline = time.monotonic() + _READY_S
    with progress.phase(f"{SERVICE} becomes Ready") as tell:
        while True:
            isvc = kubernetes.get("inferenceservice", SERVICE)
            if isvc and is_ready(isvc):
                return
            status = isvc.get("status", {}) if isvc else {}
            tell(status.get("message") or "waiting for the operator")
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"{SERVICE} is not Ready after {_READY_S:.0f} s: {status.get('message')}; "
                    f"`tandem explain {SERVICE}` says more"
                )
            time.sleep(_POLL_S)


def is_ready(isvc: Mapping[str, Any]) -> bool:
    """Return True when the version of an InferenceService that was applied last serves."""
    status = isvc.get("status", {})
    ready = {
        condition["type"]: condition["status"] for condition in status.get("conditions", [])
    }.get("Ready")
    current = status.get("observedGeneration") == isvc["metadata"]["generation"]
    return current and ready == "True"


@contextmanager
def endpoint(kubernetes: Kubernetes, *, direct: bool) -> Iterator[str]:
    """The service's URL as this machine reaches it; a user's cluster needs a tunnel."""
    if direct:
        service = kubernetes.get("service", SERVICE)
        if service is None:
            raise CommandFailed(
                f"the Service {SERVICE} has gone; `tandem explain {SERVICE}` says more"
            )
        yield f"http://{service['spec']['clusterIP']}:8000"
        return
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chosen = [] if kubernetes.context is None else [f"--context={kubernetes.context}"]
    tunnel = subprocess.Popen(
        [kubernetes.kubectl_path, *chosen, "port-forward", f"service/{SERVICE}", f"{port}:8000"],
        env=kubernetes.environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        tunnel.terminate()
        tunnel.wait()


def _ask(url: str) -> None:
    """One streamed answer, by the command that a user has."""
    _wait_until_it_answers(url)
    out.print(f"You ask: {QUESTION}")
    out.print("It answers: ", end="")
    tandem = [sys.executable, "-m", "tandem_serve", "chat", "-m", QUESTION]
    done = subprocess.run([*tandem, "--temperature", "0", "--url", url], check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{url} gave no answer; `tandem explain {SERVICE}` says more")


def _wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", trust_env=False, timeout=2).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(_POLL_S)
    raise CommandFailed(f"{url}/health does not answer; `tandem explain {SERVICE}` says more")


def _say_what_next(kubernetes: Kubernetes, *, own: bool) -> None:
    out.print("\nWhat to try next:")
    if not own:
        folder = Path(kubernetes.kubectl_path).parent
        out.print(f"  export KUBECONFIG={kubernetes.environment['KUBECONFIG']}")
        out.print(f"  export PATH=$PATH:{folder}:{Path(sys.prefix) / 'bin'}")
    for command, meaning in (
        ("kubectl get isvc", "what runs, and where"),
        (f"tandem explain {SERVICE}", "why it is as it is, in five lines"),
        (f"kubectl edit isvc {SERVICE}", "change splitChunkTokens: live, nothing restarts"),
        (f"kubectl scale isvc {SERVICE} --replicas=2", "a second replica, in a pod of its own"),
        *(() if own else (("make down", "end it"),)),
    ):
        out.print(f"  {command:<42} {meaning}")


if __name__ == "__main__":
    main()
