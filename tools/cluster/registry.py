"""The clusters of this user: which there are, in what state, and how each is taken away."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem_serve.processes import is_alive, wait_until_gone
from tools.cluster import remains
from tools.cluster.build import locked
from tools.cluster.errors import ClusterError
from tools.cluster.network import Network
from tools.cluster.paths import cache
from tools.cluster.state import Files, Order, Phase, Record

_END_TIMEOUT_S: Final = 60.0


def files_of(name: str) -> Files:
    """The files of the cluster `name`, whether it is there or not."""
    return Files(cache().running / name)


def names() -> list[str]:
    """Return every cluster that left something in the cache, in any state."""
    running = cache().running
    return sorted(folder.name for folder in running.iterdir()) if running.is_dir() else []


def read_record(files: Files) -> Record | None:
    """Record of the keeper; None: it did not come that far."""
    with suppress(FileNotFoundError):
        return Record.from_json(files.record.read_text(encoding="utf-8"))
    return None


def read_order(files: Files) -> Order:
    """Options of the caller.

    Raises:
        ClusterError: the cluster is gone.
    """
    try:
        return Order.from_json(files.order.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ClusterError(f"cluster {files.folder.name} is gone") from None


def phase_of(name: str) -> Phase | None:
    """Phase of the cluster; None: there is none."""
    files = files_of(name)
    if not files.folder.exists():
        return None
    record = read_record(files)
    if record is None or not is_alive(record.keeper.pid, record.keeper.started):
        return Phase.BROKEN
    return Phase.READY if files.status.exists() else Phase.STARTING


def end(name: str) -> bool:
    """End the cluster `name`, in any state; return True if there was one.

    Raises:
        ClusterError: something of it is left.
    """
    files = files_of(name)
    if not files.folder.exists():
        return False
    # A process that claims the name right now holds this until it has written the record.
    with locked(cache().start_lock):
        pass
    end_claimed(files)
    return True


def end_claimed(files: Files) -> None:
    """Do what `end` does, for a caller that holds the lock."""
    name = files.folder.name
    record = read_record(files)
    if record is not None:
        _end_keeper(record)
        # What a keeper that was killed could not do.
        packages = Path(read_order(files).packages) if files.order.exists() else Path("/")
        remains.remove(record, files, Network(packages))
    else:
        remains.remove_folder(files)
    if files.folder.exists():
        raise ClusterError(f"cluster {name} has ended, but its folder {files.folder} is left")


def _end_keeper(record: Record) -> None:
    pid, started = record.keeper.pid, record.keeper.started
    if not is_alive(pid, started):
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not wait_until_gone(pid, started, timeout_s=_END_TIMEOUT_S):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid, started, timeout_s=_END_TIMEOUT_S)
    # It may be a child of this very process, which then takes leave of it.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
