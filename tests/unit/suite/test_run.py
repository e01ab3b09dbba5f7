"""A run keeps compiled tests; one that is ended lets pytest clean up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG_S
from tools.suite.run import Run, execute

FOREVER = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture
def cluster():
    yield
    Path({left!r}).touch()

def test_nothing(cluster):
    with open({ready!r}, "wb") as pipe:
        pipe.write(b"ready")
    time.sleep({hang_s})
"""
RUN = """
import signal, sys
signal.signal(signal.SIGINT, {disposition})
from tools.suite.run import Run, execute
sys.exit(3 if execute(Run(name="endless", paths=({path!r},))).outcomes.is_interrupted else 0)
"""


@pytest.mark.parametrize(
    "disposition",
    ["signal.SIG_IGN", pytest.param("signal.default_int_handler", marks=pytest.mark.slow)],
)
def test_a_run_that_is_ended_in_the_background_cleans_up(tmp_path: Path, disposition: str) -> None:
    path, left, ready = tmp_path / "test_endless.py", tmp_path / "left", tmp_path / "ready"
    # Opening it waits for the other side.
    os.mkfifo(ready)
    path.write_text(FOREVER.format(left=str(left), ready=str(ready), hang_s=HANG_S))
    line = RUN.format(disposition=disposition, path=str(path))
    with subprocess.Popen([sys.executable, "-c", line]) as process:
        assert ready.read_bytes() == b"ready"
        process.send_signal(signal.SIGTERM)
        status = process.wait(HANG_S)

    assert (status, left.exists()) == (3, True)


def test_tests_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_short.py"
    path.write_text("def test_nothing():\n    pass\n")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    outcomes = execute(Run(name="short", paths=(str(path),))).outcomes

    assert not outcomes.failures
    assert list(tmp_path.glob("__pycache__/test_short*.pyc"))
