"""Tests that fail by chance are found, counted and named with their seeds; nothing stays behind."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from typer.testing import CliRunner, Result

from tests.patience import HANG_S
from tools.steadiness.cli import app
from tools.steadiness.disturbance import busy_processes, random_stops
from tools.steadiness.failure_counts import FailureCounts
from tools.suite.outcomes import Failure, Outcomes

# It starts pytest again and again.
pytestmark = pytest.mark.slow

EVERY_SECOND = """
import pathlib

def test_good(): pass

def test_every_second():
    count = pathlib.Path(__file__).with_suffix(".count")
    number = int(count.read_text()) if count.exists() else 0
    count.write_text(str(number + 1))
    assert number % 2 == 0, "by chance"
"""
HANGS = "import time\n\ndef test_hangs(): time.sleep(600)\n"


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)
        process.kill()


def steadiness(folder: Path, text: str, *options: str) -> Result:
    file = folder / "test_it.py"
    file.write_text(text)
    return CliRunner().invoke(app, [str(file), "--load=0", "--stop=0", *options])


def test_a_test_that_fails_by_chance_is_named_with_its_seeds(tmp_path: Path) -> None:
    result = steadiness(tmp_path, EVERY_SECOND, "--times=4", "--seed=10")

    assert result.exit_code == 1
    assert "seed 10: 2 passed, 0 failed" in result.output
    assert "seed 11: 1 passed, 1 failed" in result.output
    *_, failed, reason, seeds, last = result.output.splitlines()
    assert failed.startswith("failed 2 of 4: ")
    assert failed.endswith("test_it.py::test_every_second")
    assert reason.strip() == "AssertionError: by chance"
    assert seeds.strip() == "seeds 11, 13"
    assert last == "1 tests failed in 4 runs"


def test_tests_that_always_pass_are_a_success(tmp_path: Path) -> None:
    result = steadiness(tmp_path, "def test_good(): pass", "--times=2")

    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "0 tests failed in 2 runs")


def test_a_run_that_hangs_is_ended_and_has_failed(tmp_path: Path) -> None:
    result = steadiness(tmp_path, HANGS, "--times=1", "--timeout=1")

    assert result.exit_code == 1
    assert "it did not end within 1 s" in result.output


def test_busy_processes_run_and_end_with_the_block() -> None:
    before = set(psutil.Process().children())
    with busy_processes(2):
        started = set(psutil.Process().children()) - before
        assert len(started) == 2

    assert not any(process.is_running() for process in started)


def test_a_process_is_stopped_and_goes_on_when_the_block_ends(sleeper: psutil.Process) -> None:
    with random_stops(sleeper.pid, Random(1), 600.0):
        wait_for_status(sleeper, psutil.STATUS_STOPPED)

    assert sleeper.status() != psutil.STATUS_STOPPED


def test_nothing_is_stopped_for_no_time(sleeper: psutil.Process) -> None:
    threads = threading.active_count()
    with random_stops(sleeper.pid, Random(1), 0.0):
        assert threading.active_count() == threads


def test_a_process_that_has_ended_is_no_trouble(sleeper: psutil.Process) -> None:
    sleeper.kill()
    sleeper.wait()

    with random_stops(sleeper.pid, Random(1), 0.01):
        pass


def test_the_most_frequent_comes_first_and_counts_once_a_run() -> None:
    counts = FailureCounts()
    counts.add(
        1, Outcomes(failures=[Failure("a", "x"), Failure("b", "y"), Failure("b", "its end")])
    )
    counts.add(2, Outcomes(failures=[Failure("b", "z")]))

    assert list(counts.lines()) == [
        "failed 2 of 2: b",
        "       y",
        "       seeds 1, 2",
        "failed 1 of 2: a",
        "       x",
        "       seeds 1",
        "2 tests failed in 2 runs",
    ]


def wait_for_status(process: psutil.Process, status: str) -> None:
    deadline = time.monotonic() + HANG_S
    while process.status() != status:
        assert time.monotonic() < deadline, process.status()
        time.sleep(0.01)
