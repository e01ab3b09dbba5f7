"""The peak of this process's memory, by the kernel's mark and by looking."""

import threading
from pathlib import Path

import pytest
import torch

from tandem_engine.device.cpu import memory
from tandem_engine.device.cpu.memory import give_back_free_memory, peak_memory, resident_memory
from tests.patience import HANG_S

MIB = 2**20
SIZE = 200 * MIB


def work() -> None:
    torch.ones(SIZE, dtype=torch.uint8)


def test_what_was_freed_at_the_end_counts_by_the_mark() -> None:
    give_back_free_memory()  # what other tests have left goes back before the work anyway
    before = resident_memory()

    peak = peak_memory(work)

    assert 0.9 * SIZE < peak - before < 1.2 * SIZE


def test_what_was_freed_at_the_end_counts_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    def look() -> int:
        size = resident_memory()
        looked.set()
        return size

    def hold_until_seen() -> None:
        held = torch.ones(SIZE, dtype=torch.uint8)
        for _ in range(2):  # the first look may have begun before
            looked.clear()
            assert looked.wait(HANG_S)
        del held

    give_back_free_memory()
    before = resident_memory()
    monkeypatch.setattr(memory, "resident_memory", look)

    peak = peak_memory(hold_until_seen, tmp_path)

    assert 0.9 * SIZE < peak - before < 1.2 * SIZE


def test_what_was_freed_before_does_not_count() -> None:
    work()

    assert peak_memory(lambda: None) - resident_memory() < SIZE / 4


def test_a_failure_is_passed_on(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    for root in (Path("/"), tmp_path):
        with pytest.raises(RuntimeError, match="broken"):
            peak_memory(fail, root)
