"""Values of the chart that run operator and replicas from this checkout, without building images.

The pods are a bare Debian with this checkout, its virtual environment and the interpreter mounted
read-only at the paths they have here, so a change of the code needs a new pod and no new image.
"""

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

IMAGE: Final = "localhost/tandem/base:1"
CPU_OVERCOMMIT: Final = 20
"""Pods ask for a twentieth of the CPU they may use, so that all of them fit on a laptop."""

# The system's Python is in the image already: it is made from this machine's own release.
_SYSTEM_PYTHON: Final = Path("/usr")
_ALL_PODS: Final[Mapping[str, Any]] = {"namespaceSelector": {}}
_PROMETHEUS: Final[Mapping[str, Any]] = {
    **_ALL_PODS,
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotReadable(Exception):
    """The pods' user could not read a folder that they need."""


def development_values(
    venv: Path, python_home: Path, source: Path, *, caller: str | None = None
) -> dict[str, Any]:
    """Values of charts/tandem for a cluster whose nodes see these folders of this machine.

    `venv` is the virtual environment that `make` fills, `python_home` the folder of the
    interpreter below it (`sys.base_prefix`), `source` the checkout. `caller` is an address outside
    the cluster, as an address block, that may send requests and read metrics beside the pods.

    Raises:
        NotReadable: a folder is closed to other users, and pods do not run as root.
    """
    needed = [venv, source] + ([python_home] if python_home != _SYSTEM_PYTHON else [])
    check_readable(needed)
    repository, _, tag = IMAGE.rpartition(":")
    env = [
        {"name": "PATH", "value": f"{venv}/bin:{_SYSTEM_PATH}"},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
    ]
    volumes, mounts = _mounted(outermost(needed))
    outside = [] if caller is None else [{"ipBlock": {"cidr": caller}}]
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "command": ["tandem-operator"],
        "extraEnv": env,
        "extraVolumes": volumes,
        "extraVolumeMounts": mounts,
        "settings": {
            # The models, too, are mounted from this machine.
            "allowHostPath": True,
            "replica": {
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "env": env,
                "haproxy": f"{venv}/bin/tandem-haproxy",
                "volumes": volumes,
                "volumeMounts": mounts,
                "cpuOvercommit": CPU_OVERCOMMIT,
            },
            "access": {"clients": [_ALL_PODS, *outside]},
        },
        "networkPeers": {"prometheus": [_PROMETHEUS, *outside]},
    }


def outermost(folders: Iterable[Path]) -> list[Path]:
    """The folders, sorted, without those inside another one: a mount shows all that is below."""
    kept: list[Path] = []
    for folder in sorted(set(folders)):
        if not any(folder.is_relative_to(outer) for outer in kept):
            kept.append(folder)
    return kept


def check_readable(folders: Iterable[Path]) -> None:
    """Refuse folders that only their owner may read.

    Raises:
        NotReadable: with the folder and the way out.
    """
    for folder in folders:
        if folder.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH) != stat.S_IROTH | stat.S_IXOTH:
            raise NotReadable(
                f"{folder} is closed to other users, and pods do not run as root; "
                f"run: chmod -R o+rX {folder}"
            )


def _mounted(folders: list[Path]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    volumes: list[Mapping[str, Any]] = []
    mounts: list[Mapping[str, Any]] = []
    for number, folder in enumerate(folders):
        name = f"development-{number}"
        volumes.append({"name": name, "hostPath": {"path": str(folder), "type": "Directory"}})
        mounts.append({"name": name, "mountPath": str(folder), "readOnly": True})
    return volumes, mounts
