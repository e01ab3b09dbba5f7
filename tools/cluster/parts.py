"""The processes of a machine: started, watched, and stopped by name."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.cluster.errors import ClusterError
from tools.cluster.state import PartStatus

JOB: Final = "import-"
"""Prefix of the names of jobs."""
_TAIL_LINES: Final = 5
_TAIL_BYTES: Final = 4096
_SIGNALS: Final = {
    "pause": signal.SIGSTOP,
    "resume": signal.SIGCONT,
    "kill": signal.SIGKILL,
}
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Parts:
    """The parts of one machine; also its one-off jobs, which are parts that end."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        logs: Path,
    ) -> None:
        self._commands = dict(commands)
        self._environment = dict(environment)
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a part that does not run.

        Raises:
            ClusterError: there is no such part, or it runs.
        """
        command = self._command(name)
        process = self._processes.get(name)
        if process is not None and process.poll() is None:
            raise ClusterError(f"part {name} runs already, as process {process.pid}")
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
            )

    def run(self, name: str, command: Sequence[str]) -> None:
        """Start a job, which is over when it has ended well."""
        self._commands[name] = list(command)
        self.start(name)

    def ended_well(self, name: str) -> bool:
        """Return True when a job is over."""
        return self._processes[name].poll() == 0

    def signal(self, name: str, what: str) -> None:
        """Pause, resume or kill a part.

        Raises:
            ClusterError: there is no such part, or it does not run.
        """
        self._command(name)
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            raise ClusterError(f"part {name} does not run; start it first")
        process.send_signal(_SIGNALS[what])
        if what == "kill":
            process.wait()

    def find_dead(self) -> str | None:
        """A sentence about a process that ended and should not have, if there is one."""
        for name, process in self._processes.items():
            status = process.poll()
            if status is not None and not (status == 0 and self._is_job(name)):
                return f"{name} ended with {_in_words(status)}; its last words:{self._tail(name)}"
        return None

    def _tail(self, name: str) -> str:
        text = self.log(name).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return "".join(f"\n  {line}" for line in text.splitlines()[-_TAIL_LINES:])

    def log(self, name: str) -> Path:
        """The log file of a part."""
        return self._logs / f"{name}.log"

    def statuses(self) -> dict[str, PartStatus]:
        """Every part that was started, jobs aside."""
        return {
            name: _status(process)
            for name, process in self._processes.items()
            if not self._is_job(name)
        }

    def _command(self, name: str) -> Sequence[str]:
        if name not in self._commands:
            parts = ", ".join(command for command in self._commands if not self._is_job(command))
            raise ClusterError(f"there is no part {name}; the parts are {parts}")
        return self._commands[name]

    @staticmethod
    def _is_job(name: str) -> bool:
        return name.startswith(JOB)


def _status(process: subprocess.Popen[bytes]) -> PartStatus:
    code = process.poll()
    if code is not None:
        return PartStatus(pid=process.pid, state=f"exited with {_in_words(code)}")
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    state = "paused" if fields[0] == "T" else "running"
    return PartStatus(pid=process.pid, state=state, resident_bytes=int(fields[21]) * _PAGE)


def _in_words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
