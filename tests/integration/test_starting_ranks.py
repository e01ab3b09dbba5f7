"""Ranks that are starting end with rank 0, whatever they import or load at that moment."""

import multiprocessing
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.parallel.segment import SegmentAddress
from tandem_engine.parallel.shared_memory import SharedMemoryAddress
from tandem_engine.runner.rank_launcher import ProcessLauncher, RankTask
from tandem_engine.runner.rank_process import GroupAddress, RankSettings
from tests.patience import HANG_S

_NOWHERE = SegmentAddress(pid=0, fd=0, size=0, nonce="")


def import_for_ever(fifo: str) -> None:
    """Be a module that is imported for longer than any test."""
    with open(fifo, "wb", buffering=0) as pipe:  # noqa: PTH123 - a pipe is no file to Path
        pipe.write(b"%d\n" % os.getpid())
    time.sleep(2 * HANG_S)


@dataclass(frozen=True, slots=True)
class EndlessImport(RankTask):
    """A rank that never comes out of importing what it is made of."""

    fifo: str

    def __reduce__(self) -> Any:
        return import_for_ever, (self.fifo,)


def task(rank: int, fifo: str) -> EndlessImport:
    settings = RankSettings(
        model_path="nowhere", shape=ParallelShape(tp=4), block_size=16, timeout_s=HANG_S
    )
    address = GroupAddress(
        process=os.getpid(),
        channel=_NOWHERE,
        world=SharedMemoryAddress(_NOWHERE),
        profile=_NOWHERE,
    )
    return EndlessImport(rank, settings, address, fifo)


def be_rank_0(fifo: str) -> None:
    ProcessLauncher().launch([task(rank, fifo) for rank in (1, 2, 3)])
    time.sleep(2 * HANG_S)


@pytest.mark.slow
def test_ranks_that_import_end_with_a_killed_rank_0(tmp_path: Path) -> None:
    fifo = tmp_path / "ranks"
    os.mkfifo(fifo)
    rank_0 = multiprocessing.get_context("spawn").Process(target=be_rank_0, args=(str(fifo),))
    rank_0.start()
    # Open for writing, too: so it has no end before the last rank has come.
    with open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as pipe:  # noqa: PTH123
        ranks: list[int] = []
        try:
            while len(ranks) < 3:
                assert select.select([pipe], [], [], HANG_S)[0]
                ranks += [os.pidfd_open(int(pid)) for pid in pipe.read(1024).split()]
        finally:
            rank_0.kill()
            rank_0.join()

    for rank in ranks:
        assert select.select([rank], [], [], HANG_S)[0]
        os.close(rank)


def test_a_rank_whose_rank_0_has_ended_before_does_not_start() -> None:
    code = (
        "import os, sys\n"
        "from tandem_engine.runner.rank_start import start_rank\n"
        "assert 'torch' not in sys.modules\n"
        "start_rank(None, os.getppid() + 1, None)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr == "Rank 0 has ended while this rank started.\n"
    assert done.returncode == 1
