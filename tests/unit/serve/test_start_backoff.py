"""A replica that fails again and again waits longer and longer."""

from pathlib import Path

import pytest

from tandem_serve.api.ray_env import START_COUNT_FILE, retry_env
from tandem_serve.start_backoff import StartBackoff


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "starts"
    for name, value in retry_env(str(file)).items():
        monkeypatch.setenv(name, value)
    return file


def pauses(count: int) -> list[int]:
    """The pauses before `count` starts, each in a process of its own."""
    found = []
    for _ in range(count):
        starts = StartBackoff.of_environment()
        found.append(starts.pause_s())
        starts.begin()
    return found


@pytest.mark.usefixtures("file")
def test_pauses_grow_to_a_minute() -> None:
    assert pauses(9) == [0, 0, 2, 4, 8, 16, 32, 60, 60]


def test_a_start_that_succeeds_forgets_them(file: Path) -> None:
    pauses(5)

    StartBackoff.of_environment().succeed()

    assert pauses(2) == [0, 0]
    assert file.exists(), "the second of them has not succeeded yet"


def test_a_file_that_holds_no_number_counts_as_none(file: Path) -> None:
    file.write_text("once")

    assert pauses(3) == [0, 0, 2]


def test_without_a_file_starts_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_COUNT_FILE, raising=False)

    assert pauses(5) == [0] * 5
