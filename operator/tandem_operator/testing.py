"""Settings for a Kubernetes of this machine's own: Python comes from the machine, not in images."""

from pathlib import Path
from typing import Any

from tandem_operator.render.settings import (
    AccessSettings,
    ContainerResources,
    IpBlock,
    OperatorSettings,
    Peer,
    ReplicaDefaults,
)
from tandem_serve.api.pods import EnvVar

_IMAGE = "localhost/tandem/base:1"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def development_settings(venv: Path, python_home: Path, source: Path) -> OperatorSettings:
    """Settings under which pods run the code of a checkout, with no image to build.

    The image holds bash and little else. The virtual environment `venv`, the interpreter's home
    `python_home` (sys.base_prefix) and the packages below `source`, which `venv` has installed in
    place, are folders of the node; all three are absolute.
    """
    folders = {
        "tandem-venv": venv,
        "tandem-python": python_home,
        "tandem-engine": source / "engine",
        "tandem-serve": source / "serve",
    }
    return OperatorSettings(
        replica=ReplicaDefaults(
            image=_IMAGE,
            image_pull_policy="Never",
            env=[EnvVar(name="PATH", value=f"{venv}/bin:{_SYSTEM_PATH}")],
            volumes=[_volume(name, folder) for name, folder in folders.items()],
            volume_mounts=[_mount(name, folder) for name, folder in folders.items()],
            # Two CPUs carry several services, each of which asks for more than two.
            cpu_overcommit=20,
            head_resources=ContainerResources(cpu="2", memory="2Gi"),
            autoscaler_resources=ContainerResources(cpu="1", memory="512Mi"),
        ),
        # The caller sits on the machine, outside of Kubernetes.
        access=AccessSettings(clients=[Peer(ip_block=IpBlock(cidr="0.0.0.0/0"))]),
    )


def _volume(name: str, folder: Path) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": str(folder), "type": "Directory"}}


def _mount(name: str, folder: Path) -> dict[str, Any]:
    return {"name": name, "mountPath": str(folder), "readOnly": True}
