"""The peak of this process's memory, by the kernel's mark and by looking."""

from pathlib import Path

import pytest
import torch

from tandem_engine.device.cpu.memory import give_back_free_memory, peak_memory, resident_memory

MIB = 2**20
SIZE = 200 * MIB


def work() -> None:
    torch.ones(SIZE, dtype=torch.uint8)


@pytest.mark.parametrize("has_mark", [True, False], ids=["the kernel's mark", "by looking"])
def test_what_was_freed_at_the_end_counts(has_mark: bool, tmp_path: Path) -> None:
    give_back_free_memory()  # what other tests have left goes back before the work anyway
    before = resident_memory()
    peak = peak_memory(work, Path("/") if has_mark else tmp_path)

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
