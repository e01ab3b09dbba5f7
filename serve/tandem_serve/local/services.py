"""Operations on a running local service: deploy, apply, look up, stop."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tandem_serve.api.document import ServeOptions, serve_document
from tandem_serve.api.spec import InferenceService
from tandem_serve.api.state import ServiceState
from tandem_serve.errors import ServeError
from tandem_serve.local.ports import Ports
from tandem_serve.local.records import Record, clear_dead, read_records, replace_record
from tandem_serve.processes import is_alive, wait_until_gone
from tandem_serve.ray_client import (
    ProgressCallback,
    RayServeClient,
    startup_line,
    wait_until_routed,
    wait_until_running,
)

_ROUTE_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 20.0
# Share of the machine's memory that old and new replicas together may request.
_SURGE_SHARE: Final = 0.8


def connect(record: Record) -> RayServeClient:
    """The REST interface of a service's Ray."""
    return RayServeClient(record.dashboard_url, token=record.token)


def deploy(
    record: Record,
    service: InferenceService,
    *,
    check: Callable[[], None],
    report: ProgressCallback,
) -> None:
    """Run `service` under `record`, and wait until it runs.

    `check` is called at every poll and raises when waiting is pointless.

    Raises:
        ServeError: it failed; the text is the reason.
    """
    options = ServeOptions(
        host=record.host,
        port=record.port,
        api_keys_folder=record.api_keys,
        max_surge_percent=_surge(service),
    )
    with connect(record) as ray:
        ray.put(serve_document(service, options))
        state = wait_until_running(
            ray, service.name, logs=logs_dir(record), check=check, report=report
        )
    report("waiting for the proxy")
    wait_until_routed(
        service.name,
        url=record.url,
        stats_port=Ports(record.base_port).haproxy_stats,
        replicas=[replica.replica_id for replica in state.running],
        timeout_s=_ROUTE_TIMEOUT_S,
    )
    replace_record(replace(record, service=service.manifest()))


def apply(record: Record, service: InferenceService, *, report: ProgressCallback) -> None:
    """Apply a manifest to a running service; when that fails, roll back to the last one.

    Raises:
        ServeError: the manifest cannot be served; what ran before runs.
    """

    def check() -> None:
        if not is_alive(record.pid, record.started):
            raise ServeError(
                f"The service {record.name} exited while the manifest was applied; start it again "
                "with tandem serve -f FILE."
            )

    try:
        deploy(record, service, check=check, report=report)
    except ServeError as error:
        check()
        report("rolling back to the last manifest")
        deploy(record, applied(record), check=check, report=report)
        text = f"{str(error).rstrip('.')}; the service runs as before."
        raise ServeError(text, details=error.details) from error


def applied(record: Record) -> InferenceService:
    """The manifest that was last applied."""
    return InferenceService.model_validate(record.service)


def state_of(record: Record) -> ServiceState | None:
    """A service as Ray reports it; None: it does not answer yet."""
    with connect(record) as ray:
        return ray.state(record.name)


def capacity_of(record: Record, state: ServiceState) -> str:
    """KV capacity that the replicas logged; empty: nothing yet."""
    lines = [
        startup_line(logs_dir(record), record.name, replica.replica_id) for replica in state.running
    ]
    said = {line.removeprefix("KV cache: ").partition(" (")[0] for line in lines if line}
    return "; ".join(sorted(said))


def logs_dir(record: Record) -> Path:
    """Folder of the logs of a service's Ray."""
    return Path(record.run_dir) / "session_latest" / "logs"


def choose(name: str | None) -> Record:
    """The running service `name`, or the only one there is.

    Raises:
        ServeError: there is none, or more than one and no name.
    """
    records = read_records()
    names = ", ".join(record.name for record in records)
    if not records:
        raise ServeError("No service runs here; start one with: tandem serve -f FILE")
    if name is None and len(records) > 1:
        raise ServeError(f"Several services run here: {names}; name one of them.")
    for record in records:
        if name in {None, record.name}:
            return record
    raise ServeError(f"No service '{name}' runs here; running: {names}.")


def stop(record: Record) -> None:
    """End a running service and everything that belongs to it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)
        if wait_until_gone(record.pid, record.started, timeout_s=_STOP_TIMEOUT_S):
            break
    clear_dead(record)


def _surge(service: InferenceService) -> int:
    """Percent of replicas that may start before the old ones stop: all, if memory allows."""
    requested = 2 * service.replicas * service.spec.resources.memory_bytes
    return 100 if requested <= _SURGE_SHARE * machine_memory() else 0


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
