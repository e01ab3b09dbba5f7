"""Ranks that exchange tensors over a network, by torch's gloo: what micro-batches are measured on.

A replica has all ranks on one host, and shared memory between them; there communication is
computing, and nothing can be hidden under it. Over a link it is waiting.

bfloat16 is summed as float32, which doubles the bytes of a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch.distributed

from tandem_engine.parallel.process_groups import Backend, ProcessGroupCommunicator
from tandem_engine.parallel.world import Group, WorldShape

# torch has no types for what is used here.
_TORCH: Final[Any] = torch.distributed


class LinkWorld:
    """Implements `rank_world.World` over TCP: a store, on the host of rank 0, which is this one.

    Args:
        hostnames: By rank: name or address by which the others reach its host.
    """

    def __init__(self, hostnames: Sequence[str]) -> None:
        self._store: Any = _TORCH.TCPStore(hostnames[0], 0, is_master=True, wait_for_workers=False)
        self.address = LinkAddress(self._store.port, tuple(hostnames))

    def close(self) -> None:
        """End the store."""
        self._store = None


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Implements `rank_world.WorldAddress` over TCP."""

    port: int
    """Of the store."""
    hostnames: tuple[str, ...]

    def join(self, shape: WorldShape, rank: int, *, timeout_s: float) -> ProcessGroupCommunicator:
        """See `WorldAddress`; a call, too, takes `timeout_s` at most."""
        timeout = timedelta(seconds=timeout_s)
        store = _TORCH.TCPStore(self.hostnames[0], self.port, is_master=False, timeout=timeout)
        backend = gloo(self.hostnames[rank])
        return ProcessGroupCommunicator(backend, store, shape, rank, timeout_s=timeout_s)


def gloo(hostname: str) -> Backend:
    """Gloo on the interface that has the address of `hostname`."""

    def make_group(store: Any, group: Group, place: int, timeout: timedelta) -> Any:
        options = _TORCH.ProcessGroupGloo._Options()  # noqa: SLF001 - a constructor takes it
        options._devices = [_TORCH.ProcessGroupGloo.create_device(hostname=hostname)]  # noqa: SLF001
        options._timeout = timeout  # noqa: SLF001
        return _TORCH.ProcessGroupGloo(store, place, len(group.ranks), options)

    return Backend(make_group=make_group, device="cpu", sums_bfloat16=False)
