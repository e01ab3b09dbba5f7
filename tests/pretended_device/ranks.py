"""Ranks on pretended devices: process groups of their tensors, and what each rank waits for."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.overlap.link import LOOPBACK
from benchmarks.overlap.link_communicator import gloo
from tandem_engine.parallel.process_groups import Backend
from tandem_engine.parallel.world import Group
from tests.patience import HANG_S
from tests.pretended_device.order import Part
from tests.pretended_device.runtime import engines_on_device, tiles
from tests.pretended_device.tensors import (
    NAME,
    QUEUE,
    DeviceTensor,
    Event,
    Stream,
    current_stream,
    install,
)

PRETENDED: Final = Path(__file__).parents[1] / "npu" / "pretended"
WAITS: Final = "PRETENDED_WAITS"
"""Folder in which each rank other than 0 leaves what it has waited for, and its order's faults."""

_FOR_GOOD: Final = ExitStack()
_CALLS: Final = {
    "_allgather_base",
    "_reduce_scatter_base",
    "allreduce",
    "broadcast",
    "recv",
    "send",
}
"""Of a process group; all but a send, and a broadcast of this rank's, write their first tensor."""


class _Members:
    """A process group of gloo for the device's tensors, with a stream of its own as HCCL's."""

    def __init__(self, members: Any) -> None:
        self._members = members
        self._stream = Stream(keeps_memory=True)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._members, name)
        return partial(self._put, name, call) if name in _CALLS else call

    def _put(self, name: str, call: Callable[..., Any], *args: Any) -> "_Work":
        """Carry a call out, as if later: behind what is in the stream that it is made in."""
        first, *others = (_parts(arg) for arg in args)
        reads, writes = [part for parts in others for part in parts], first
        if name == "send" or (name == "broadcast" and args[1].rootRank == self._members.rank()):
            reads, writes = first, []
        made_in = Event()
        made_in.record()
        self._stream.wait_event(made_in)
        QUEUE.order.put(self._stream.work, name, reads, writes)
        end = Event()
        end.record(self._stream)
        return _Work(call(*tree_map(_raw, args)), end)


@dataclass(frozen=True, slots=True)
class _Work:
    """A call of a process group, as torch gives it."""

    work: Any
    end: Event

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)

    def wait(self) -> None:
        """Have the stream that this thread is in wait."""
        self.work.wait()
        current_stream().wait_event(self.end)


def hccl() -> Backend:
    """Return what stands in for HCCL."""
    of_host = gloo(LOOPBACK)

    def make_group(store: Any, group: Group, place: int, timeout: Any) -> _Members:
        return _Members(of_host.make_group(store, group, place, timeout))

    return replace(of_host, make_group=make_group, device=NAME)


@contextmanager
def groups_on_devices(folder: Path) -> Iterator[None]:
    """Let engines of this process, which has a device, have ranks on others.

    Args:
        folder: For what they wait for; see `waits_of_ranks`.
    """
    environment = {
        "PYTHONPATH": str(PRETENDED),
        "PRETENDED_CARD": "/dev/null",
        WAITS: str(folder),
    }
    with (
        patch.dict(os.environ, environment),
        patch("tandem_engine.parallel.hccl.hccl", hccl),
        # A slow machine is no rank that hangs.
        patch("tandem_engine.build.RANK_TIMEOUT_S", HANG_S),
        # A rank that is killed at the end leaves nothing.
        patch("tandem_engine.runner.rank_group._END_TIMEOUT_S", HANG_S),
        engines_on_device(NAME),
    ):
        yield


def begin_device_of_rank() -> None:
    """Give the process of a rank its device, for good."""
    install()
    _FOR_GOOD.enter_context(tiles())
    # multiprocessing ends a process without atexit.
    Finalize(None, _leave_what_is_known, exitpriority=0)


def waits_of_ranks(folder: Path) -> list[Counter[str]]:
    """Return what each rank but rank 0 has waited for; they have ended."""
    return [Counter(waits) for waits, _ in _left_by_ranks(folder)]


def faults_of_ranks(folder: Path) -> list[str]:
    """Return the faults of the order of each rank's work but rank 0's; they have ended."""
    return [fault for _, faults in _left_by_ranks(folder) for fault in faults]


def _left_by_ranks(folder: Path) -> list[tuple[dict[str, int], list[str]]]:
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def _leave_what_is_known() -> None:
    file = Path(os.environ[WAITS]) / f"{os.getpid()}.json"
    file.write_text(json.dumps([QUEUE.waits, QUEUE.order.faults]))


def _parts(values: Any) -> list[Part]:
    return [Part(leaf.raw) for leaf in tree_leaves(values) if isinstance(leaf, DeviceTensor)]


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, DeviceTensor) else value
