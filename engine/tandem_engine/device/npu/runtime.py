"""The NPU backend: one Ascend card as one process sees it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.device.npu.availability import installed_software, require_npu
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.device.npu.limits import check_cache
from tandem_engine.device.runtime import Kernels, Memory
from tandem_engine.kvcache.layout import CacheLayout

SHARE_OF_FREE: Final = 0.9
"""The rest is left to what CANN and HCCL take as they go."""


class NpuRuntime:
    """The card that is this process's first visible one.

    Args:
        memory_bytes: Memory of the card that this process may use; None: 0.9 of what is free.

    Raises:
        ConfigError: A package, CANN, the driver or a card is missing.
    """

    name = "npu"

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        require_npu()
        self.device = torch.device("npu", 0)
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        self._npu.set_device(self.device)
        self.kernels: Kernels = NpuKernels()
        free, _ = self._npu.mem_get_info(self.device)
        self._memory_bytes = memory_bytes or int(SHARE_OF_FREE * free)

    def check_cache(self, layout: CacheLayout) -> None:
        """Refuse what the operators do not take: see `limits`."""
        check_cache(layout)

    def facts(self) -> DeviceFacts:
        """The card's name, and the versions of driver, CANN and torch_npu."""
        return DeviceFacts(
            device=self.name,
            name=self._npu.get_device_name(self.device),
            software=installed_software(),
            memory_bytes=self._memory_bytes,
        )

    def memory(self) -> Memory:
        """The given limit, or 0.9 of what was free at the start; and what torch holds now."""
        return Memory(total=self._memory_bytes, used=self._npu.memory_reserved(self.device))

    def peak_memory(self, work: Callable[[], object]) -> int:
        """Most bytes that torch holds while `work` runs."""
        self._npu.reset_peak_memory_stats(self.device)
        work()
        self._npu.synchronize(self.device)
        peak: int = self._npu.max_memory_reserved(self.device)
        return peak

    def set_num_threads(self, num_threads: int | None, *, rank: int = 0, num_ranks: int = 1) -> str:  # noqa: ARG002
        """Leave torch one thread: the host feeds the card, and computes little."""
        torch.set_num_threads(1)
        return "the host computes with 1 thread, the card does the rest"

    def begin_steps(self) -> None:
        """Nothing: no work of the card waits for steps."""

    def step(self) -> AbstractContextManager[None]:
        """Nothing: the card has no idle work."""
        return nullcontext()
