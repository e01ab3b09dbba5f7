"""Checks that this machine can run a cluster; one sentence for each thing that is missing."""

import os
import platform
import shutil
import subprocess
import sys
from typing import Final

from tools.cluster.build import go_version
from tools.cluster.errors import Unavailable
from tools.cluster.modules import GO_VERSION, parse_go_version
from tools.cluster.paths import CHECKOUT

WAY_OUT: Final = (
    "`tandem serve -f examples/tandem-tiny/local.yaml` runs the same without Kubernetes"
)
_PROGRAMS: Final = {
    "apt-get": "this is not Debian or Ubuntu",
    "dpkg-deb": "this is not Debian or Ubuntu",
    "unshare": "install util-linux",
    "nsenter": "install util-linux",
    "tar": "install tar",
}


def unavailable() -> str | None:
    """The sentence that says why no cluster can run here; None when one can."""
    return _sentence(_missing_system() or _missing_program() or _missing_go() or _missing_kernel())


def require() -> None:
    """Go on only where a cluster can run.

    Raises:
        Unavailable: it cannot.
    """
    _refuse(unavailable())


def require_system() -> None:
    """Go on only as root of a Linux; what else is needed takes longer to see.

    Raises:
        Unavailable: this is not.
    """
    _refuse(_sentence(_missing_system()))


def _refuse(sentence: str | None) -> None:
    if sentence:
        raise Unavailable(sentence)


def _sentence(missing: str | None) -> str | None:
    return f"a Kubernetes of one's own needs {missing}; {WAY_OUT}" if missing else None


def _missing_system() -> str | None:
    if sys.platform != "linux":
        return f"Linux, and this is {platform.system()}"
    if os.geteuid() != 0:
        return f"root, and this is user {os.geteuid()} (sudo helps)"
    return None


def _missing_program() -> str | None:
    for program, remedy in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"`{program}`, which is not on the PATH ({remedy})"
    return None


def _missing_go() -> str | None:
    expected = ".".join(map(str, GO_VERSION))
    if shutil.which("go") is None:
        return f"Go {expected} or later, and there is no `go` on the PATH (https://go.dev/dl)"
    version = go_version()
    parsed = parse_go_version(version)
    if parsed is None or parsed < GO_VERSION:
        return (
            f"Go {expected} or later, and this is {version or 'an older one'} (https://go.dev/dl)"
        )
    return None


def _missing_kernel() -> str | None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.cluster.probe"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or ["the probe was killed"])[-1]
    return f"namespaces, cgroups and overlay mounts, and the kernel refuses them ({reason})"
