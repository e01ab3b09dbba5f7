"""Everything that a cluster has on this machine, to see that it is gone afterwards."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tandem_serve.processes import is_alive, read_process
from tests.patience import HANG_S
from tools.cluster import Cluster

# Long, for machines that have other things to do; nothing waits longer than it must.
POLL_S = 0.05


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds; fail with `what` when it does not."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {HANG_S:.0f} s"
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Footprint:
    """Resources that existed while the cluster ran."""

    processes: dict[int, int]
    cgroups: list[Path]
    interface: Path
    routes: list[str]
    folder: Path

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """Look at a cluster that runs."""
        pids = [cluster.record.keeper.pid, *cluster.processes()]
        found = {pid: process.started for pid in pids if (process := read_process(pid))}
        interface = cluster.addresses.interface
        return cls(
            processes=found,
            cgroups=[Path(folder) for folder in cluster.record.cgroups],
            interface=Path("/sys/class/net") / interface,
            routes=_routes_over(interface),
            folder=cluster.files.folder,
        )

    @property
    def is_complete(self) -> bool:
        """Return True when every kind existed: otherwise its absence would prove nothing."""
        parts_and_helpers = 10
        return (
            len(self.processes) > parts_and_helpers
            and bool(self.cgroups)
            and all(folder.is_dir() for folder in self.cgroups)
            and self.interface.exists()
            and len(self.routes) > 1
        )

    def left(self) -> list[str]:
        """Return the resources that still exist, by name."""
        processes = [
            f"process {pid}" for pid, start in self.processes.items() if is_alive(pid, start)
        ]
        paths = [self.interface, self.folder, *self.cgroups]
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        return [
            *processes,
            *(str(path) for path in paths if path.exists()),
            *_routes_over(self.interface.name),
            *(line for line in mounts if str(self.folder) in line),
        ]


def _routes_over(interface: str) -> list[str]:
    table = Path("/proc/net/route").read_text(encoding="ascii").splitlines()
    return [line for line in table if line.startswith(f"{interface}\t")]
