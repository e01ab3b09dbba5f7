"""The world of ranks on the cards of one host: HCCL, by torch_npu's process groups."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import torch.distributed

from tandem_engine.parallel.hccl_backend import hccl
from tandem_engine.parallel.process_groups import ProcessGroupCommunicator
from tandem_engine.parallel.world import WorldShape

_TORCH: Final[Any] = torch.distributed


class HcclWorld:
    """Implements `rank_world.World`: a folder of this user in which ranks find each other."""

    def __init__(self, shape: WorldShape) -> None:
        self._folder = Path(mkdtemp(prefix="tandem-ranks-"))
        self.address = HcclAddress(str(self._folder / "store"), shape.size)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class HcclAddress:
    """Implements `rank_world.WorldAddress` on this host."""

    store: str
    """Path of torch's FileStore."""
    size: int
    """Number of ranks."""

    def join(self, shape: WorldShape, rank: int, *, timeout_s: float) -> ProcessGroupCommunicator:
        """See `WorldAddress`."""
        store = _TORCH.FileStore(self.store, self.size)
        return ProcessGroupCommunicator(hccl(), store, shape, rank, timeout_s=timeout_s)
