"""What the kernel says about processes that have ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tandem_serve.pidfd import exit_signal
from tests.patience import HANG_S

# A kernel before 6.15 says nothing.
UNKNOWN = None


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda child: child.kill(), signal.SIGKILL),
        (lambda child: child.send_signal(signal.SIGABRT), signal.SIGABRT),
        (lambda child: child.stdin.close(), 0),
    ],
    ids=["killed", "aborted", "by itself"],
)
def test_a_pidfd_tells_what_has_ended_the_process(
    end: Callable[[subprocess.Popen[bytes]], None], expected: int
) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        pidfd = os.pidfd_open(child.pid)
        end(child)
        child.wait()
    try:
        assert exit_signal(pidfd, timeout_s=HANG_S) in (expected, UNKNOWN)
    finally:
        os.close(pidfd)


def test_a_process_that_runs_has_no_exit_signal() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        assert exit_signal(pidfd, timeout_s=0) is None
    finally:
        os.close(pidfd)
