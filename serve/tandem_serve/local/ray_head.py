"""Ray on this machine alone: a head of its own, of which nothing stays behind."""

import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tandem_serve.api.ray_env import RAY_ENV
from tandem_serve.api.spec import InferenceService
from tandem_serve.errors import ServeError
from tandem_serve.local.ports import Ports, free_ports, is_free
from tandem_serve.local.records import RUN_DIR_PREFIX, Record, create_record, record_path
from tandem_serve.local.supervisor import DETACH
from tandem_serve.pod import haproxy
from tandem_serve.processes import read_process
from tandem_serve.ray_client import RayServeClient

# Ray makes sockets with long names below the run folder, and AF_UNIX allows 107 characters.
_LONGEST_TEMP_DIR: Final = 12
_SHORT_TEMP_DIR: Final = "/tmp"  # noqa: S108  # mkdtemp makes the folder below it

# Logical amounts, more than any request: the memory and threads of a replica stand in its
# manifest, and Ray need not count it a second time.
_LOGICAL_CPUS: Final = 4096
_LOGICAL_MEMORY: Final = 2**46
_OBJECT_STORE_BYTES: Final = 80_000_000

_HEAD_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.1
_LAST_LINES: Final = 8


@dataclass(slots=True)
class LocalRay:
    """A Ray head and the supervisor that ends it, however this process ends."""

    record: Record
    _supervisor: subprocess.Popen[bytes] = field(repr=False)
    _output: IO[bytes] | None = field(repr=False)
    is_detached: bool = False

    def wait_until_up(self, ray: RayServeClient) -> None:
        """Wait until Ray answers.

        Raises:
            ServeError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + _HEAD_TIMEOUT_S
        while not ray.is_up():
            self.check_alive()
            if time.monotonic() > deadline:
                raise ServeError(
                    f"Ray did not answer within {_HEAD_TIMEOUT_S:.0f} s; run again with -v for its "
                    "output."
                )
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise ServeError, with Ray's last output, when Ray has exited."""
        if self._supervisor.poll() is not None:
            raise ServeError(
                "Ray exited; run again with -v for its output.", details=self._last_output()
            )

    def wait(self) -> int:
        """Wait for the end; return the supervisor's exit code."""
        return self._supervisor.wait()

    def detach(self) -> None:
        """Keep the service running when this process ends."""
        self._send(DETACH)
        self.is_detached = True

    def stop(self) -> None:
        """End Ray and all its processes; harmless when it has ended."""
        self._supervisor.terminate()
        self._send(b"")
        try:
            self._supervisor.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()

    def _send(self, message: bytes) -> None:
        """Write to the supervisor for the last time."""
        pipe = self._supervisor.stdin
        if pipe is None or pipe.closed:
            return
        try:
            pipe.write(message)
            pipe.close()
        except BrokenPipeError:
            return

    def _last_output(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Address of a service on this machine, and its API keys."""

    host: str
    port: int
    api_keys: str | None = None
    """Folder of files with an API key each; None: requests need no key."""


@contextmanager
def local_ray(
    service: InferenceService, address: ListenAddress, *, echo: bool
) -> Iterator[LocalRay]:
    """A Ray head for `service`, not yet up; it ends with the context unless it is detached.

    `echo` shows Ray's own output.

    Raises:
        RecordExists: a service of this name runs already.
        ServeError: the port is in use, or no ports are free for Ray.
    """
    _check_port(address.host, address.port)
    ports, token = free_ports(), secrets.token_hex(32)
    run_dir = Path(tempfile.mkdtemp(prefix=RUN_DIR_PREFIX, dir=_temp_dir()))
    local: LocalRay | None = None
    try:
        output = None if echo else tempfile.TemporaryFile()  # noqa: SIM115  # Ray writes to it
        supervisor = _start_supervisor(service.name, run_dir, ports, token, output)
        record = _record(
            service, address, pid=supervisor.pid, run_dir=run_dir, ports=ports, token=token
        )
        local = LocalRay(record, supervisor, output)
        create_record(record)
        yield local
    finally:
        if local is not None and not local.is_detached:
            local.stop()
        if local is None or not local.is_detached:
            shutil.rmtree(run_dir, ignore_errors=True)


def _check_port(host: str, port: int) -> None:
    if not is_free(host, port):
        raise ServeError(
            f"Cannot listen on port {port} of {host}: it is in use, or the address is not this "
            "machine's; choose another with --port, or stop the process that listens there."
        )


def _start_supervisor(
    name: str, run_dir: Path, ports: Ports, token: str, output: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    own = ["--run-dir", str(run_dir), "--record", str(record_path(name))]
    return subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-m", "tandem_serve.local.supervisor", *own, "--", *_head(run_dir, ports)],
        stdin=subprocess.PIPE,
        stdout=output or sys.stderr.fileno(),
        stderr=subprocess.STDOUT,
        env=_environment(run_dir, ports, token),
        cwd=run_dir,
        # Ctrl-C on the terminal is for `tandem serve`, which then ends the rest in order.
        start_new_session=True,
    )


def _record(
    service: InferenceService,
    address: ListenAddress,
    *,
    pid: int,
    run_dir: Path,
    ports: Ports,
    token: str,
) -> Record:
    process = read_process(pid)
    if process is None:
        raise ServeError("The supervisor exited at once; run again with -v for its output.")
    return Record(
        name=service.name,
        pid=pid,
        started=process.started,
        run_dir=str(run_dir),
        host=address.host,
        port=address.port,
        api_keys=address.api_keys,
        base_port=ports.base,
        token=token,
        service=service.manifest(),
    )


def _head(run_dir: Path, ports: Ports) -> list[str]:
    """The command that starts Ray's head on loopback alone."""
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", *ports.head_flags()),
        *("--include-log-monitor=false", "--no-monitor", "--disable-usage-stats"),
        f"--temp-dir={run_dir}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        *(f"--num-cpus={_LOGICAL_CPUS}", f"--memory={_LOGICAL_MEMORY}", "--num-gpus=0"),
    ]


def _environment(run_dir: Path, ports: Ports, token: str) -> dict[str, str]:
    """The user's environment with our settings for Ray in place of the user's."""
    users = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    folder = run_dir / "h"
    return {
        **users,
        **RAY_ENV,
        # Here Ray runs beside the engine and manages one machine: its controller, at its usual ten
        # rounds a second, takes more of a core than 16 streams do, and nothing reads Ray's own
        # metrics every second.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        "RAY_metrics_report_interval_ms": "10000",
        **ports.environment(),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # Without it Ray takes the machine's outward address for its own and listens there.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        haproxy.BINARY: _proxy_command(),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def _proxy_command() -> str:
    """Path of `tandem-haproxy`, beside this Python or where the user's commands are.

    Raises:
        ServeError: it is not installed.
    """
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), *os.get_exec_path()]
    command = shutil.which(haproxy.COMMAND, path=os.pathsep.join(folders))
    if command is None:
        raise ServeError(
            f"Cannot find {haproxy.COMMAND}, which comes with Tandem, beside {sys.executable} or "
            "in PATH; install Tandem again with pip."
        )
    return command


def _temp_dir() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST_TEMP_DIR else _SHORT_TEMP_DIR
