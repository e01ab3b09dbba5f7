"""Ranks that exchange tensors over a network, by torch's gloo: what micro-batches are measured on.

A replica has all ranks on one host, and shared memory between them; there communication is
computing, and nothing can be hidden under it. Over a link it is waiting.

gloo compares no calls, and a fault is whatever it says: this is for programs that measure.
bfloat16 is summed as float32, which doubles the bytes of a sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch.distributed
from torch import Tensor

from tandem_engine.parallel.collective_record import RankCalls
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.silence import UNHEARD, Silence
from tandem_engine.parallel.world import WORLD, WorldShape

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

    def join(self, shape: WorldShape, rank: int, *, timeout_s: float) -> "LinkCommunicator":
        """See `WorldAddress`."""
        return LinkCommunicator(self, shape, rank, timeout_s=timeout_s)


class LinkCommunicator:
    """One rank of a world over TCP; implements `Communicator`. A call is done when it returns.

    Args:
        address: Of the store, and of all ranks.
        shape: As all ranks declare it.
        rank: This one.
        timeout_s: The longest time that a call, or a rank that has not joined, may take.
    """

    def __init__(
        self, address: LinkAddress, shape: WorldShape, rank: int, *, timeout_s: float
    ) -> None:
        self._rank, self._shape = rank, shape
        timeout = timedelta(seconds=timeout_s)
        store = _TORCH.TCPStore(
            address.hostnames[0], address.port, is_master=False, timeout=timeout
        )
        options = _TORCH.ProcessGroupGloo._Options()  # noqa: SLF001 - a constructor takes it
        device = _TORCH.ProcessGroupGloo.create_device(hostname=address.hostnames[rank])
        options._devices, options._timeout = [device], timeout  # noqa: SLF001
        self._groups = {
            name: _TORCH.ProcessGroupGloo(
                _TORCH.PrefixStore(f"{name}/{'-'.join(map(str, group.ranks))}", store),
                group.ranks.index(rank),
                len(group.ranks),
                options,
            )
            for name, group in shape.groups_of(rank).items()
        }

    @property
    def rank(self) -> int:
        """This rank in the world."""
        return self._rank

    @property
    def shape(self) -> WorldShape:
        """All ranks, and their groups."""
        return self._shape

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> None:
        """See `Communicator`, as for all methods."""
        total = tensor.float()
        self._carry_out(group, lambda members: members.allreduce([total]))
        if total is not tensor:
            tensor.copy_(total)

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Sum as float32."""
        piece, whole = out.float(), tensor.float()
        self._carry_out(group, lambda members: members._reduce_scatter_base(piece, whole))  # noqa: SLF001
        if piece is not out:
            out.copy_(piece)

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Gather whole tensors."""
        self._carry_out(group, lambda members: members._allgather_base(out, tensor))  # noqa: SLF001

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Send to all members."""
        options = _TORCH.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._carry_out(group, lambda members: members.broadcast([tensor], options))

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        """Send to one member."""
        self._carry_out(group, lambda members: members.send([tensor], target, 0))

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Receive from one member."""
        self._carry_out(group, lambda members: members.recv([tensor], source, 0))

    def check(self) -> None:
        """Do nothing: a call that has failed has raised."""

    def expect(self, seconds: float) -> None:
        """Do nothing: each wait is bounded by `timeout_s`."""

    def silence_of(self, rank: int) -> Silence:  # noqa: ARG002 - as the interface has it
        """None is heard outside of calls."""
        return UNHEARD

    def failure(self) -> str | None:
        """None: a call that fails raises."""
        return None

    def abort(self, cause: str) -> None:
        """Leave the world; `cause` is the log's."""
        del cause
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._groups = {}

    def _carry_out(self, group: str, start: Callable[[Any], Any]) -> None:
        try:
            start(self._groups[group]).wait()
        except (KeyError, RuntimeError) as error:
            nothing = RankCalls(self._rank, ())
            raise CollectiveError(
                rank=self._rank, cause=f"The link has failed: {error}.", own=nothing, peer=nothing
            ) from error
