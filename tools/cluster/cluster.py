"""A one-node Kubernetes to use and throw away: what the command line, `make up` and tests call."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tandem_serve.processes import GONE
from tools.cluster import cgroups, commands, control, machine, registry
from tools.cluster.addresses import Slice
from tools.cluster.errors import AlreadyUp, ClusterError
from tools.cluster.paths import CHECKOUT, cache
from tools.cluster.prepare import Prepared, prepare
from tools.cluster.progress import SILENT, Progress
from tools.cluster.start import OnLog, launch
from tools.cluster.state import Files, MachineStatus, Mount, Order, PartStatus, Phase, Record

DEFAULT_NAME: Final = "tandem"
# Each argument up to `--` is a file to write to; what follows it is run.
_JOIN_AND_RUN: Final = (
    'while [ "$1" != -- ]; do echo 0 > "$1" || exit; shift; done; shift; exec "$@"'
)
_ENTER: Final = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--root", "--wd")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that runs, from outside."""

    name: str
    files: Files

    @classmethod
    def start(
        cls,
        name: str = DEFAULT_NAME,
        *,
        mounts: Mapping[Path, str] | None = None,
        owner: int | None = None,
        prepared: Prepared | None = None,
        progress: Progress = SILENT,
        on_log: OnLog | None = None,
    ) -> Self:
        """Start a cluster and wait until its node is Ready and its images are there.

        Args:
            name: how it is found again; small letters, digits and dashes.
            mounts: folders of this machine, and where the node shows them, read-only.
            owner: pid of a process with which the cluster ends; None: it stays until `stop`.
            prepared: Result of `prepare`; None: it is called.
            progress: told what happens.
            on_log: given the lines of the parts' logs while they start.

        Raises:
            AlreadyUp: there is a cluster of this name.
            ClusterError: it cannot be started; its log says more.
        """
        _check_name(name)
        if cls.find(name):
            raise AlreadyUp(f"cluster {name} is up")
        prepared = prepared or prepare(progress)
        files = registry.files_of(name)
        shown = {source.resolve(): target for source, target in (mounts or {}).items()}
        order = Order(
            name=name,
            folder=str(files.folder),
            programs=str(files.programs),
            packages=str(prepared.packages),
            images=tuple(map(str, prepared.images)),
            live=_live_folders(),
            mounts=tuple(Mount(str(source), target) for source, target in shown.items()),
            owner=owner,
        )
        launch(order, prepared, progress, on_log)
        return cls(name, files)

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Self | None:
        """The cluster of this name, if it runs and is ready."""
        ready = registry.phase_of(name) is Phase.READY
        return cls(name, registry.files_of(name)) if ready else None

    @classmethod
    def all(cls) -> list[Self]:
        """Every cluster of this user that is ready."""
        return [cluster for name in registry.names() if (cluster := cls.find(name))]

    def stop(self) -> None:
        """End it, and all that it held."""
        registry.end(self.name)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with everything in it."""
        return self.files.kubeconfig

    @property
    def bin_dir(self) -> Path:
        """The folder of kubectl, helm and the other Go parts."""
        return self.files.programs

    @property
    def addresses(self) -> Slice:
        """Its addresses, which this machine has routes to."""
        addresses = self.record.addresses
        if addresses is None:
            raise ClusterError(f"cluster {self.name} has no network yet")
        return addresses

    @property
    def record(self) -> Record:
        """Resources that it holds outside of its namespaces."""
        record = registry.read_record(self.files)
        if record is None:
            raise ClusterError(f"cluster {self.name} is gone")
        return record

    @property
    def status(self) -> MachineStatus:
        """Its parts, as they are now."""
        answer = control.ask(self.files.control, "status")
        return MachineStatus.from_json(answer["status"])

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with kubectl on the PATH and the way to the cluster."""
        return os.environ | {
            "PATH": f"{self.bin_dir}:{os.environ.get('PATH', os.defpath)}",
            "KUBECONFIG": str(self.kubeconfig),
            # kubectl remembers by address which kinds there are, and clusters follow each other at
            # the same one.
            "KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl-cache"),
        }

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002
        """Run kubectl and return its output.

        Raises:
            ClusterError: it fails; the text is what it says.
        """
        done = subprocess.run(
            [str(self.bin_dir / "kubectl"), *arguments],
            env=self.environment,
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command on the node; its output is text, its exit status is not judged."""
        return subprocess.run(
            self.node_command(command),
            env=self.node_environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def import_image(self, archive: Path) -> None:
        """Give Kubernetes an image from an archive on the node; again is harmless.

        Raises:
            ClusterError: containerd does not take it.
        """
        done = self.run(commands.import_image(str(archive)))
        if done.returncode != 0:
            raise ClusterError(f"image {archive.name} cannot be imported: {done.stderr.strip()}")

    def node_command(self, command: Sequence[str]) -> list[str]:
        """Return the arguments that run `command` on the node, given `node_environment`."""
        # Below the cluster's cgroups it ends and is counted with the cluster.
        groups = [f"{_leaf(Path(folder))}/cgroup.procs" for folder in self.record.cgroups]
        enter = ["nsenter", f"--target={self._init}", *_ENTER, "--", *command]
        return ["sh", "-c", _JOIN_AND_RUN, "sh", *groups, "--", *enter]

    @property
    def node_environment(self) -> dict[str, str]:
        """The environment of the node's own processes."""
        kept = {name: os.environ[name] for name in ("TERM",) if name in os.environ}
        return machine.environment(registry.read_order(self.files)) | kept

    def parts(self) -> dict[str, PartStatus]:
        """The parts by name: `etcd`, `kube-apiserver`, `kubelet` and so on."""
        return dict(self.status.parts)

    def pause(self, part: str) -> None:
        """SIGSTOP: the part hangs."""
        control.ask(self.files.control, "pause", part)

    def resume(self, part: str) -> None:
        """SIGCONT: the part goes on."""
        control.ask(self.files.control, "resume", part)

    def kill(self, part: str) -> None:
        """SIGKILL: the part is gone when this returns."""
        control.ask(self.files.control, "kill", part)

    def start_part(self, part: str) -> None:
        """Start a part that was killed, with the same command line."""
        control.ask(self.files.control, "start", part)

    def memory(self) -> int:
        """Bytes that the parts have in memory; pods are not counted."""
        return sum(part.resident_bytes for part in self.parts().values())

    def processes(self) -> list[int]:
        """Pids, as this machine counts them, of everything that runs in the sandbox."""
        home = _pid_namespace(self._init)
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in pids if home and _pid_namespace(pid) == home]

    @property
    def _init(self) -> int:
        init = self.record.init
        if init is None:
            raise ClusterError(f"cluster {self.name} has no process yet")
        return init.pid


def _leaf(group: Path) -> Path:
    """Cgroup for processes: of version 2, only groups that hand no controllers on."""
    leaf = group / cgroups.LEAF
    return leaf if leaf.is_dir() else group


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise ClusterError(
            f"cluster name {name!r}: use up to 40 small letters, digits and dashes between them"
        )


def _live_folders() -> tuple[str, ...]:
    """Folders that change during a cluster, or must exist: checkout, interpreter, venv, cache."""
    folders = [CHECKOUT, Path(sys.prefix), Path(sys.base_prefix), cache().folder]
    below = [
        folder for folder in (folder.resolve() for folder in folders) if _is_below_the_top(folder)
    ]
    return tuple(dict.fromkeys(map(str, below)))


def _is_below_the_top(folder: Path) -> bool:
    """Return True when showing `folder` hides nothing of the node: `/usr` has its Python."""
    return len(folder.parts) > len(Path("/usr").parts)


def _pid_namespace(pid: int) -> str:
    # One that may not be read is another user's, and none of the sandbox.
    with suppress(*GONE, PermissionError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""
