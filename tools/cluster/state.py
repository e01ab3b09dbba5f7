"""Records of a cluster, and their files: plain data, no I/O but JSON text."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from tools.cluster.addresses import Slice

DETACH: Final = b"detach\n"
"""Message to the keeper that the cluster shall outlive the caller."""


class Phase(StrEnum):
    """Phase of a cluster."""

    STARTING = "starting"
    READY = "ready"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the caller's, shown read-only on the node."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Options of the caller: everything that the keeper and the machine need."""

    name: str
    folder: str
    """Folder of the cluster's files; on a real file system, for containerd."""
    programs: str
    """Folder of the Go parts."""
    packages: str
    """Root of the unpacked Debian packages."""
    images: tuple[str, ...]
    """Docker archives to import."""
    live: tuple[str, ...]
    """Folders of the host that change while the cluster runs: checkout, interpreter, venv."""
    mounts: tuple[Mount, ...] = ()
    owner: int | None = None
    """Process whose end is the cluster's end."""

    def to_json(self) -> str:
        """The order as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The order that `to_json` wrote."""
        data = json.loads(text)
        return cls(
            **data
            | {
                "images": tuple(data["images"]),
                "live": tuple(data["live"]),
                "mounts": tuple(Mount(**mount) for mount in data["mounts"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process by number and start, which together never come back."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Resources of a cluster outside its namespaces, so that any process can remove them."""

    name: str
    keeper: Identity
    init: Identity | None = None
    cgroups: tuple[str, ...] = ()
    slice: int | None = None
    interface: int | None = None
    """The kernel's number of the caller's end of the cable."""

    @property
    def addresses(self) -> Slice | None:
        """The slice, once it is chosen."""
        return None if self.slice is None else Slice(self.slice)

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record that `to_json` wrote."""
        data = json.loads(text)
        init = data["init"]
        return cls(
            **data
            | {
                "keeper": Identity(**data["keeper"]),
                "init": Identity(**init) if init else None,
                "cgroups": tuple(data["cgroups"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """A part as its supervisor sees it; the pid is the sandbox's own numbering."""

    pid: int
    state: str
    resident_bytes: int = 0

    @property
    def runs(self) -> bool:
        """Return True while the process exists, paused or not."""
        return not self.state.startswith("exited")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """The machine as its supervisor sees it."""

    phase: Phase
    parts: Mapping[str, PartStatus] = field(default_factory=dict)

    def to_json(self) -> str:
        """The status as text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The status that `to_json` wrote."""
        data = json.loads(text)
        parts = {name: PartStatus(**part) for name, part in data["parts"].items()}
        return cls(phase=Phase(data["phase"]), parts=parts)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one running cluster."""

    folder: Path

    @property
    def order(self) -> Path:
        """File of the caller's options."""
        return self.folder / "order.json"

    @property
    def record(self) -> Path:
        """File of the resources outside, written by the keeper."""
        return self.folder / "record.json"

    @property
    def status(self) -> Path:
        """Phase and parts, by the supervisor."""
        return self.folder / "status.json"

    @property
    def control(self) -> Path:
        """The socket on which the supervisor listens."""
        return self.folder / "control"

    @property
    def logs(self) -> Path:
        """One file a part."""
        return self.folder / "logs"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.folder / "pki"

    @property
    def config(self) -> Path:
        """Configuration files of the parts, and their kubeconfigs."""
        return self.folder / "config"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way in, for the caller."""
        return self.folder / "kubeconfig"

    @property
    def programs(self) -> Path:
        """kubectl, helm and the other Go parts, as links."""
        return self.folder / "bin"

    @property
    def data(self) -> Path:
        """etcd's data, containerd's and kubelet's root: a real file system, empty at the start."""
        return self.folder / "data"

    @property
    def root(self) -> Path:
        """Folder where the machine's root is put together; empty when seen from outside."""
        return self.folder / "root"


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader sees all of it or none."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
