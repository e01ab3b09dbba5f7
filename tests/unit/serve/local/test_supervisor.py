"""The supervisor leaves nothing behind, however it ends and however it was started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem_serve.local.supervisor import DETACH, EXIT_HEAD_DIED, EXIT_STOPPED
from tandem_serve.processes import descendants, is_alive, read_process
from tests.patience import HANG_S

# A stand-in for Ray's head: a child in a session of its own, and an orphan in another.
HEAD = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep, start_new_session=True)
if os.fork() == 0:
    subprocess.Popen(sleep, start_new_session=True)
    os._exit(0)
time.sleep(600)
"""


class Supervised:
    """A supervisor with a run folder and a record, started as `tandem serve` does."""

    def __init__(self, folder: Path, head: str) -> None:
        self.run_dir = folder / "run"
        self.record = folder / "record.json"
        self.run_dir.mkdir()
        (self.run_dir / "file").touch()
        own = ["--run-dir", str(self.run_dir), "--record", str(self.record)]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tandem_serve.local.supervisor",
                *own,
                "--",
                sys.executable,
                "-c",
                head,
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.record.write_text(json.dumps({"pid": self.process.pid}))

    def family(self) -> list[tuple[int, int]]:
        found = descendants(self.process.pid)
        return [(one.pid, one.started) for one in found if not one.is_zombie]

    def is_complete(self) -> bool:
        """True when the head is alone in the session, with a child and an orphan outside of it."""
        found = [
            descendant for descendant in descendants(self.process.pid) if not descendant.is_zombie
        ]
        return sorted(one.session == self.process.pid for one in found) == [False, False, True]

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        return self.process.wait(HANG_S)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    started = Supervised(tmp_path, HEAD)
    try:
        wait_for(started.is_complete)
        yield started
    finally:
        started.close_stdin()
        started.process.terminate()
        started.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def assert_nothing_left(supervised: Supervised, family: list[tuple[int, int]]) -> None:
    assert family
    assert not [pid for pid, started in family if is_alive(pid, started)]
    assert not supervised.run_dir.exists()
    assert not supervised.record.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything(supervised: Supervised, number: signal.Signals) -> None:
    family = supervised.family()

    supervised.process.send_signal(number)

    assert supervised.wait() == EXIT_STOPPED
    assert_nothing_left(supervised, family)


def test_a_parent_that_is_gone_ends_everything(supervised: Supervised) -> None:
    family = supervised.family()

    supervised.close_stdin()

    assert supervised.wait() == EXIT_STOPPED
    assert_nothing_left(supervised, family)


def test_a_head_that_died_ends_everything(supervised: Supervised) -> None:
    family = supervised.family()
    head = next(
        pid
        for pid, _ in family
        if (process := read_process(pid)) and process.session == supervised.process.pid
    )

    os.kill(head, signal.SIGKILL)

    assert supervised.wait() == EXIT_HEAD_DIED
    assert_nothing_left(supervised, family)


def test_a_detached_one_outlives_its_parents_pipe(supervised: Supervised) -> None:
    family = supervised.family()
    assert supervised.process.stdin is not None

    supervised.process.stdin.write(DETACH)
    supervised.close_stdin()

    with pytest.raises(subprocess.TimeoutExpired):
        supervised.process.wait(0.5)
    assert all(is_alive(pid, started) for pid, started in family)
    supervised.process.terminate()
    assert supervised.wait() == EXIT_STOPPED
    assert_nothing_left(supervised, family)


def test_the_record_of_another_service_stays(supervised: Supervised) -> None:
    supervised.record.write_text(json.dumps({"pid": 1}))

    supervised.process.terminate()

    assert supervised.wait() == EXIT_STOPPED
    assert supervised.record.exists()
