"""The local services of this user: one JSON file each, readable by this user alone.

A record is written by `tandem serve`, and removed by the service's supervisor at its end.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from tandem_serve.errors import ServeError
from tandem_serve.local.ports import Ports
from tandem_serve.processes import is_alive, kill_all, read_process, session_members

RUN_DIR_PREFIX: Final = "tandem-"


class RecordExists(Exception):  # not an error for --detach
    """A service of this name is running already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One local service: where it is and how to end it."""

    name: str
    pid: int
    """Its supervisor, which is also the session of all its processes."""
    started: int
    """When the supervisor started, in clock ticks after the machine's start."""
    run_dir: str
    """Folder of sockets and logs; ends with the service."""
    host: str
    port: int
    base_port: int
    """The first of the ports of its Ray."""
    token: str
    """Key to Ray's REST interface."""
    service: dict[str, Any]
    """The InferenceService that was last applied, its source absolute."""
    api_keys: str | None = None
    """Folder of files with an API key each; None: requests need no key."""

    @property
    def url(self) -> str:
        """URL of the service."""
        # A server that listens on all addresses is reached on loopback.
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def dashboard_url(self) -> str:
        """URL of Ray's REST interface."""
        return f"http://127.0.0.1:{Ports(self.base_port).dashboard}"


_RECORD: Final = TypeAdapter(Record)


def records_dir() -> Path:
    """Folder of the records; made, if need be, for this user alone.

    Raises:
        ServeError: it cannot be made.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        folder = Path(runtime) / "tandem"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folder = Path(cache) / "tandem" / "services"
    with _writable(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def record_path(name: str) -> Path:
    """Path of the record of the service `name`."""
    return records_dir() / f"{name}.json"


def create_record(record: Record) -> None:
    """Write a record that is not there yet.

    Raises:
        RecordExists: there is one.
    """
    draft = _write_draft(record)
    try:
        record_path(record.name).hardlink_to(draft)
    except FileExistsError:
        raise RecordExists(record.name) from None
    finally:
        draft.unlink()


def replace_record(record: Record) -> None:
    """Write a record in place of the one that is there."""
    _write_draft(record).replace(record_path(record.name))


def read_records() -> list[Record]:
    """The services that run, by name; what a dead one left behind is cleared away."""
    read = (_read(path) for path in sorted(records_dir().glob("*.json")))
    records = [record for record in read if record is not None]
    for record in records:
        if not is_alive(record.pid, record.started):
            clear_dead(record)
    return [record for record in records if is_alive(record.pid, record.started)]


def find_record(name: str) -> Record | None:
    """The running service `name`, or None."""
    return next((record for record in read_records() if record.name == name), None)


def clear_dead(record: Record) -> None:
    """Remove what is left of a service whose supervisor was killed outright."""
    # While a member lives, the kernel gives its session's number to no other process.
    if read_process(record.pid) is None:
        kill_all(session_members(record.pid))
    if Path(record.run_dir).name.startswith(RUN_DIR_PREFIX):
        shutil.rmtree(record.run_dir, ignore_errors=True)
    with suppress(OSError):
        record_path(record.name).unlink()


def _write_draft(record: Record) -> Path:
    folder = records_dir()
    draft = folder / f".{record.name}.{os.getpid()}"
    with _writable(folder):
        draft.unlink(missing_ok=True)
        opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
    return draft


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ServeError(
            f"The folder of this user's services, {folder}, cannot be written: {error.strerror}; "
            "name a folder of yours in XDG_RUNTIME_DIR or XDG_CACHE_HOME."
        ) from None


def _read(path: Path) -> Record | None:
    """The record at `path`; None, and no file any more, when it is not one of ours."""
    try:
        record = _RECORD.validate_json(path.read_bytes(), strict=True)
    except OSError:  # gone meanwhile, or no file
        return None
    except ValueError:
        record = None
    if record is None or record.name != path.stem:
        with suppress(OSError):
            path.unlink()
        return None
    return record
