"""Removes everything that a cluster holds outside its namespaces."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem_serve.processes import is_alive, wait_until_gone
from tools.cluster import cgroups
from tools.cluster.network import Network
from tools.cluster.state import Files, Identity, Record

_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.02


def remove(record: Record, files: Files, network: Network) -> None:
    """End the sandbox and remove its interface, its cgroups and its folder."""
    if record.init is not None:
        _end(record.init)
    if record.addresses is not None and record.interface is not None:
        network.disconnect(record.addresses, record.interface)
    cgroups.remove(map(Path, record.cgroups))
    remove_folder(files)


def _end(init: Identity) -> None:
    """Kill the first process of the sandbox, and so all; wait until it is gone."""
    if is_alive(init.pid, init.started):
        with suppress(ProcessLookupError):
            os.kill(init.pid, signal.SIGKILL)
    # It goes last, when every other process of its namespace has gone.
    with suppress(ChildProcessError):
        os.waitpid(init.pid, 0)
        return
    wait_until_gone(init.pid, init.started, timeout_s=_TIMEOUT_S)


def _keep_logs(files: Files) -> None:
    """Logs outlive their cluster until the next of its name ends."""
    if not files.logs.is_dir():
        return
    kept = last_logs(files.folder)
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        files.logs.rename(kept)


def last_logs(folder: Path) -> Path:
    """Return the folder of the logs of the cluster in `folder` after its end."""
    return folder.parent.parent / "logs" / folder.name


def remove_folder(files: Files) -> None:
    """Remove the cluster's files; its logs are kept."""
    _keep_logs(files)
    folder = files.folder
    deadline = time.monotonic() + _TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline:
        # A mount of a namespace that is being taken down can hold a folder for a moment.
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_POLL_S)
