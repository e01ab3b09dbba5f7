"""`python -m tools.cluster.probe`: tries, in namespaces that end with it, what a cluster needs."""

import sys
import tempfile
from pathlib import Path

from tools.cluster import cgroups, kernel
from tools.cluster.errors import ClusterError


def main() -> int:
    """Try; say on standard error what fails."""
    try:
        cgroups.plan(cgroups.find_hierarchies(), "probe")
        with tempfile.TemporaryDirectory() as folder:
            _try_mounts(Path(folder))
    except (ClusterError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201  # read by `require`
        return 1
    return 0


def _try_mounts(folder: Path) -> None:
    kernel.unshare(
        kernel.NEW_MOUNTS
        | kernel.NEW_NETWORK
        | kernel.NEW_CGROUPS
        | kernel.NEW_HOSTNAME
        | kernel.NEW_IPC
        | kernel.NEW_PIDS
    )
    kernel.mount("none", Path("/"), flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("probe", folder, "tmpfs")
    for name in ("upper", "work", "merged"):
        (folder / name).mkdir()
    options = f"lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work"
    kernel.mount("overlay", folder / "merged", "overlay", data=options)
    kernel.make_read_only(folder / "merged")
    kernel.unmount(folder / "merged")
    kernel.unmount(folder)


if __name__ == "__main__":
    sys.exit(main())
