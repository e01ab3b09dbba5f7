"""A card of a pod: the NPU's kernels over operators in plain torch, where its device file is."""

import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import torch

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.api.errors import ConfigError
from tandem_engine.device.npu.availability import VISIBLE_VARIABLE
from tests.npu.operators import any_size, operators_on_cpu
from tests.npu.runtime import NpuOnCpu
from tests.pretended_device.ranks import WAITS, begin_device_of_rank

CARD = Path(os.environ.get("PRETENDED_CARD", "/dev/davinci0"))
"""Device file that a device plug-in gives to a container."""


@cache
def operators_for_good() -> ExitStack:
    """Have the operators for as long as this process lives, whichever engine was the first."""
    stack = ExitStack()
    stack.enter_context(operators_on_cpu())
    stack.enter_context(any_size())
    return stack


class NpuRuntime(NpuOnCpu):
    """Stands in for the class of that name."""

    name = "npu"

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        if memory_bytes is not None:
            raise AssertionError("a card's memory is not the replica's")
        if not CARD.exists():
            raise ConfigError(f"device npu needs a card, and there is no {CARD}")
        super().__init__()
        operators_for_good()
        if WAITS in os.environ:
            begin_device_of_rank()
            self.device = torch.device(self.name, 0)

    def facts(self) -> DeviceFacts:
        """Name the card that Ray has given to this process."""
        return DeviceFacts(
            device=self.name,
            name="Pretended910",
            software=f"{VISIBLE_VARIABLE} {os.environ.get(VISIBLE_VARIABLE)}, driver 0",
            memory_bytes=self.memory().total,
        )
