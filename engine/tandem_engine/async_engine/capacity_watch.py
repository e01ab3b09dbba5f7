"""Has a replica's capacity measured again and again while it serves, by a process of its own."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Final

from pydantic import TypeAdapter, ValidationError

from tandem_engine.api.config import EngineConfig
from tandem_engine.async_engine.capacity_question import (
    CapacityQuestion,
    MeasuredCapacity,
    Measurement,
)
from tandem_engine.async_engine.metrics import EngineMetrics

_LOG = logging.getLogger(__name__)
_COMMAND: Final = (sys.executable, "-P", "-m", "tandem_engine.capacity_process")
_LOWEST_PRIORITY: Final = 19
_PERIOD_S: Final = 15.0
"""Between two measurements, at least: the operator's period."""
_MOST_OF_A_CORE: Final = 0.05
"""Share that measuring may take. The lowest priority alone does not keep it from other replicas of
the node: cgroups share a processor by their own weights."""

_QUESTION = TypeAdapter(CapacityQuestion)
_ANSWER = TypeAdapter(MeasuredCapacity)


class CapacityWatch:
    """Keeps the newest answer to the newest question.

    Args:
        question: Returns what is to be measured; None: nothing yet, or the same as before.
        period_s: Time between two measurements, at least.
    """

    def __init__(
        self, question: Callable[[], CapacityQuestion | None], *, period_s: float = _PERIOD_S
    ) -> None:
        self._question = question
        self._period_s = period_s
        self._process: subprocess.Popen[bytes] | None = None
        # Held where the process comes and goes: `stop` may be called meanwhile.
        self._lock = threading.Lock()
        self._is_stopped = False
        self._wakes = threading.Event()
        self._measured: Measurement | None = None
        self._thread = threading.Thread(target=self._run, name="tandem-capacity", daemon=True)

    def start(self) -> None:
        """Start the thread; the process comes with the first question."""
        self._thread.start()

    @property
    def measured(self) -> Measurement | None:
        """The newest answer, and its question; None: there is none yet."""
        return self._measured

    def hurry(self) -> None:
        """Measure at once: the settings are others; from any thread."""
        self._wakes.set()

    def stop(self) -> None:
        """End the process; from any thread."""
        with self._lock:
            self._is_stopped = True
            self._wakes.set()
            if self._process is not None:
                self._process.kill()

    def _run(self) -> None:
        pause_s = self._period_s
        while not self._is_stopped:
            self._wakes.wait(pause_s)
            self._wakes.clear()
            question = self._question()
            pause_s = self._period_s if question is None else self._measure(question)
        self._end_process()

    def _measure(self, question: CapacityQuestion) -> float:
        """Have a question answered; return the seconds until the next one."""
        try:
            answer = self._ask(question)
        except (OSError, ValidationError):
            if not self._is_stopped:
                _LOG.warning("The replica's capacity could not be measured", exc_info=True)
            self._end_process()
            # What was measured gets old; the formula does not.
            self._measured = None
            return self._period_s
        self._measured = question, answer
        return max(self._period_s, answer.cpu_s / _MOST_OF_A_CORE)

    def _ask(self, question: CapacityQuestion) -> MeasuredCapacity:
        """Return the answer of the process.

        Raises:
            OSError: it cannot be started, or has ended.
            ValidationError: it has ended in the middle of an answer.
        """
        stdin, stdout = self._started()
        stdin.write(_QUESTION.dump_json(question) + b"\n")
        stdin.flush()
        return _ANSWER.validate_json(stdout.readline())

    def _started(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return the pipes to and from the process; start it where there is none."""
        with self._lock:
            if self._is_stopped:
                raise OSError("stopped")
            if self._process is None:
                self._process = subprocess.Popen(  # noqa: S603 - a module of ours
                    _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _LOWEST_PRIORITY)
            stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "it was started with a pipe; this is a bug"  # noqa: S101
        assert stdout is not None, "it was started with a pipe; this is a bug"  # noqa: S101
        return stdin, stdout

    def _end_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def watch_capacity(config: EngineConfig, metrics: EngineMetrics) -> CapacityWatch | None:
    """Have the capacity of a replica measured, and shown in its metrics.

    None: it has pipeline stages, dp ranks or drafts, which the search does not know.
    """
    parallelism = config.parallelism
    if parallelism.pp > 1 or parallelism.num_dp > 1 or config.speculation.methods:
        return None
    watch = CapacityWatch(metrics.capacity_question)
    metrics.watch_capacity(lambda: watch.measured)
    watch.start()
    return watch
