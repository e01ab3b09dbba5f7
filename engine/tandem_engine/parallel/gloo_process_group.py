"""torch's gloo: the store, process groups, and events of their work.

torch has no types for what is used here.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed
from torch import Tensor

_TORCH: Any = torch.distributed


class Store(Protocol):
    """torch's TCPStore, or a part of it. Its errors are RuntimeErrors."""

    @property
    def port(self) -> int:
        """Where it listens."""

    def get(self, key: str) -> bytes:
        """Wait for a key, until the store's timeout."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""

    def check(self, keys: list[str]) -> bool:
        """Say at once if all keys are set."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key that has the expected value, or with "" none; return its value now."""


class Work(Protocol):
    """A call that gloo's threads carry out."""

    def wait(self) -> object:
        """Block until it is done."""


class ProcessGroup(Protocol):
    """One group of ranks; errors are RuntimeErrors. Connections close with the last reference."""

    def allreduce(self, tensors: list[Tensor]) -> Work:
        """Start an all-reduce of one tensor."""

    def _reduce_scatter_base(self, out: Tensor, tensor: Tensor) -> Work: ...

    def _allgather_base(self, out: Tensor, tensor: Tensor) -> Work: ...

    def broadcast(self, tensors: list[Tensor], options: object) -> Work:
        """Start a broadcast of one tensor."""

    def send(self, tensors: list[Tensor], target: int, tag: int) -> Work:
        """Start to send one tensor to a place."""

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        """Start to receive one tensor from a place."""


def start_store(hostname: str, port: int = 0) -> Store:
    """Start the store through which the ranks of one world find one another; port 0: any.

    It ends with the object. A store serves one world.
    """
    store: Store = _TORCH.TCPStore(hostname, port, is_master=True, wait_for_workers=False)
    return store


def open_store(address: tuple[str, int], timeout_s: float) -> Store:
    """Connect to a store that another process has started."""
    host, port = address
    store: Store = _TORCH.TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=timeout_s)
    )
    return store


def connect(
    store: Store,
    name: str,
    ranks: Sequence[int],
    rank: int,
    *,
    hostname: str,
    timeout_s: float,
    join_timeout_s: float,
) -> ProcessGroup:
    """Connect a rank with the others of its group, which all call this with the same name."""
    options = _TORCH.ProcessGroupGloo._Options()  # noqa: SLF001 - a constructor takes it
    options._devices = [_TORCH.ProcessGroupGloo.create_device(hostname=hostname)]  # noqa: SLF001
    options._timeout = timedelta(seconds=join_timeout_s)  # noqa: SLF001
    options._threads = 2  # noqa: SLF001
    made = _TORCH.ProcessGroupGloo(
        _TORCH.PrefixStore(name, store), ranks.index(rank), len(ranks), options
    )
    made.set_timeout(timedelta(seconds=timeout_s))
    group: ProcessGroup = made
    return group


def broadcast(group: ProcessGroup, tensor: Tensor, source: int) -> Work:
    """Start a broadcast from a place in the group."""
    options = _TORCH.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    return group.broadcast([tensor], options)


def reduce_scatter(group: ProcessGroup, out: Tensor, tensor: Tensor) -> Work:
    """Start a reduce-scatter of whole tensors."""
    return group._reduce_scatter_base(out, tensor)  # noqa: SLF001 - torch has no other that does


def all_gather(group: ProcessGroup, out: Tensor, tensor: Tensor) -> Work:
    """Start an all-gather of whole tensors."""
    return group._allgather_base(out, tensor)  # noqa: SLF001 - as above


class GlooEvent:
    """The event of a call that gloo's threads carry out.

    Args:
        work: The call.
        carry_out: Calls a function, and raises CollectiveError where that fails.
        results: A tensor to fill when the call is done, and what to fill it with.
    """

    def __init__(
        self,
        work: Work,
        carry_out: Callable[[Callable[[], object]], object],
        results: tuple[Tensor, Tensor] | None,
    ) -> None:
        self._work = [work]
        self._carry_out = carry_out
        self._results = results

    def wait(self) -> None:
        """Block until the call is done, and put its result in its place."""
        if not self._work:
            return
        # The list is empty when an error is raised: work holds its group's connections.
        self._carry_out(lambda: self._work.pop().wait())
        if self._results is not None:
            out, computed = self._results
            if out is not computed:
                out.copy_(computed)
