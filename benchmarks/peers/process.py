"""A runner in a process of its own: asked line by line, with a time limit, and ended for sure."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from benchmarks.peers.engines import ROOT, InstalledEngine, runner_environment
from benchmarks.peers.runners.protocol import Failed, Message, ProtocolError, decode, encode
from benchmarks.serving.errors import BenchmarkError

_END_S: Final = 10.0
"""Seconds that a runner has to end by itself once its stdin is closed."""
_READ: Final = 1 << 16
_SHOWN_LINES: Final = 4


class RunnerFailed(BenchmarkError):
    """An engine failed a request; its row says so, and the other engines continue."""


class RunnerProcess:
    """A context: the process and all that it started end with it.

    Args:
        engine: The engine and its interpreter.
        cores: Logical CPUs that it may use, as many as it has threads.
        pin: Bind each thread to one of them.
        log: File that gets what it prints.

    Raises:
        RunnerFailed: the interpreter cannot be started.
    """

    def __init__(
        self, engine: InstalledEngine, cores: Sequence[int], *, pin: bool, log: Path
    ) -> None:
        self._title = engine.kind.title
        self._log = log
        self._rest = b""
        self.begin_s = time.perf_counter()
        command = [str(engine.python), "-m", engine.kind.runner]
        try:
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    [*command, ",".join(map(str, cores))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=runner_environment(engine, cores, pin=pin),
                    cwd=ROOT,
                    # One group, so that engines of several processes end as a whole.
                    start_new_session=True,
                )
        except OSError as error:
            raise RunnerFailed(
                f"{engine.python} cannot be started: {error.strerror}; "
                f"name the interpreter that has {self._title}."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        if error is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        # Processes that are left of the group have no reader any more.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def ask(self, message: Message, *, timeout_s: float) -> Message:
        """Send a message and wait for its answer.

        Raises:
            RunnerFailed: it could not be done, the process ended, or it took too long.
        """
        stdin = self._process.stdin
        assert stdin is not None, "this is a bug: the runner was started without stdin"  # noqa: S101
        try:
            stdin.write(encode(message).encode())
            stdin.flush()
            answer = decode(self._line(timeout_s))
        except BrokenPipeError:
            raise RunnerFailed(self._ended()) from None
        except ProtocolError as error:
            raise RunnerFailed(f"{self._title} sent an invalid answer: {error}") from None
        if isinstance(answer, Failed):
            raise RunnerFailed(f"{self._title}: {answer.error}")
        return answer

    def peak_bytes(self) -> int | None:
        """Most memory that the process and its children had (VmHWM), each for itself.

        None where the system does not tell.
        """
        peaks = [_high_water(pid) for pid in _family(self._process.pid)]
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if known else None

    def _line(self, timeout_s: float) -> str:
        stdout = self._process.stdout
        assert stdout is not None, "this is a bug: the runner was started without stdout"  # noqa: S101
        deadline_s = time.perf_counter() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left_s = deadline_s - time.perf_counter()
                if left_s <= 0 or not selector.select(left_s):
                    raise RunnerFailed(
                        f"{self._title} gave no answer within {timeout_s:g} s; "
                        f"raise --timeout, or see {self._log}."
                    )
                data = os.read(stdout.fileno(), _READ)
                if not data:
                    raise RunnerFailed(self._ended())
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def _ended(self) -> str:
        status = self._process.wait()
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        said = " | ".join(line.strip() for line in lines[-_SHOWN_LINES:])
        return f"{self._title} exited with status {status}: {said or 'no output'}."


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return [pid]
    return [pid, *(child.pid for child in children)]


def _high_water(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None
