"""The command `python -m tools.cluster`, as a user runs it."""

import subprocess
import sys

from tools.cluster import Cluster
from tools.cluster.paths import CHECKOUT


def install(cluster: Cluster, what: str) -> None:
    """Install `monitoring` or `keda`."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.cluster", what, "--name", cluster.name],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
