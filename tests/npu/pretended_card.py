"""A card of a pod: the NPU's kernels over operators in plain torch, where its device file is."""

import os
from contextlib import ExitStack
from pathlib import Path

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.api.errors import ConfigError
from tandem_engine.device.npu.availability import VISIBLE_VARIABLE
from tests.npu.operators import any_size, operators_on_cpu
from tests.npu.runtime import NpuOnCpu

CARD = Path("/dev/davinci0")
"""Device file that a device plug-in gives to a container."""


class NpuRuntime(NpuOnCpu):
    """Stands in for the class of that name."""

    name = "npu"

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        if memory_bytes is not None:
            raise AssertionError("a card's memory is not the replica's")
        if not CARD.exists():
            raise ConfigError(f"device npu needs a card, and there is no {CARD}")
        super().__init__()
        self._operators = ExitStack()
        self._operators.enter_context(operators_on_cpu())
        self._operators.enter_context(any_size())

    def facts(self) -> DeviceFacts:
        """Name the card that Ray has given to this process."""
        return DeviceFacts(
            device=self.name,
            name="Pretended910",
            software=f"{VISIBLE_VARIABLE} {os.environ.get(VISIBLE_VARIABLE)}, driver 0",
            memory_bytes=self.memory().total,
        )
