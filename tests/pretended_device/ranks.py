"""Ranks on pretended devices: process groups of their tensors, and what each rank waits for."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from torch.utils._pytree import tree_map

from benchmarks.overlap.link import LOOPBACK
from benchmarks.overlap.link_communicator import gloo
from tandem_engine.parallel.process_groups import Backend
from tandem_engine.parallel.world import Group
from tests.patience import HANG_S
from tests.pretended_device.runtime import engines_on_device, tiles
from tests.pretended_device.tensors import NAME, QUEUE, DeviceTensor, install

PRETENDED: Final = Path(__file__).parents[1] / "npu" / "pretended"
WAITS: Final = "PRETENDED_WAITS"
"""Folder in which each rank other than 0 leaves what it has waited for."""

_FOR_GOOD: Final = ExitStack()


class _Members:
    """A process group of gloo for the device's tensors."""

    def __init__(self, members: Any) -> None:
        self._members = members

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: getattr(self._members, name)(*tree_map(_raw, args))


def hccl() -> Backend:
    """Return what stands in for HCCL: each call is done when it returns."""
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
    Finalize(None, _leave_waits, exitpriority=0)


def waits_of_ranks(folder: Path) -> list[Counter[str]]:
    """Return what each rank but rank 0 has waited for; they have ended."""
    return [Counter(json.loads(file.read_text())) for file in sorted(folder.iterdir())]


def _leave_waits() -> None:
    file = Path(os.environ[WAITS]) / f"{os.getpid()}.json"
    file.write_text(json.dumps(QUEUE.waits))


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, DeviceTensor) else value
