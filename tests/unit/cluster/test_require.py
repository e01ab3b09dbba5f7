"""A machine that cannot run a cluster says so in one sentence, with the way out."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import require
from tools.cluster.paths import CHECKOUT

WAY_OUT = "`tandem serve -f examples/tandem-tiny/local.yaml` runs the same without Kubernetes"


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(require, "go_version", lambda: "go1.26.0")


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")

    assert require.unavailable() == (
        f"a Kubernetes of one's own needs Linux, and this is Darwin; {WAY_OUT}"
    )


def test_another_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert "needs root, and this is user 1000" in str(require.unavailable())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("go", "needs Go 1.26 or later, and there is no `go` on the PATH"),
        ("apt-get", "needs `apt-get`, which is not on the PATH (this is not Debian or Ubuntu)"),
    ],
)
def test_a_missing_program_is_named(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == program else name)

    sentence = str(require.unavailable())

    assert words in sentence
    assert sentence.endswith(WAY_OUT)


def test_an_old_go_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require, "go_version", lambda: "go1.25.9")

    assert "needs Go 1.26 or later, and this is go1.25.9" in str(require.unavailable())


def test_the_command_says_it_without_a_traceback(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "tools.cluster", "up"],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("error: a Kubernetes of one's own needs ")
    assert len(done.stderr.splitlines()) == 1
