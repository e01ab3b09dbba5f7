"""The CPU backend: always there, and the reference for the others."""

import os
import platform
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.device.cpu.huge_pages import HugePages, TouchBudget
from tandem_engine.device.cpu.idle_work import IdleWork
from tandem_engine.device.cpu.memory import available_memory, peak_memory, resident_memory
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import AUTO, Library, load_library
from tandem_engine.device.cpu.threads.compute_threads import ComputeThreads, read_thread_settings
from tandem_engine.device.cpu.threads.core_locks import CoreLocks
from tandem_engine.device.cpu.threads.cores import Pin, ThreadPlan
from tandem_engine.device.cpu.threads.host_cores import read_host_cores
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import Kernels, Memory
from tandem_engine.kvcache.layout import CacheLayout

KERNELS_VARIABLE = "TANDEM_KERNELS"
"""Names the variant of the kernels: avx512, avx2, portable or reference; unset: the best. Those of
the threads are in `threads`."""

_MODEL_NAME = re.compile(r"^model name\s*:(.+)$", re.MULTILINE)
SHARE_OF_AVAILABLE = 0.8
"""The rest is left to other processes and to what grows later, such as the page cache."""


class CpuRuntime:
    """The processor and the main memory of this machine, or of this container.

    Args:
        memory_bytes: Memory that this process may use; None: 0.8 of what is available.
        kernels: Variant of the kernels; None: as TANDEM_KERNELS says, or the best there is.

    Raises:
        ConfigError: There is no such variant, or this CPU cannot run it; TANDEM_THREADS or
            TANDEM_PIN is wrong.
    """

    name = "cpu"

    def __init__(self, *, memory_bytes: int | None = None, kernels: str | None = None) -> None:
        self.device = torch.device("cpu")
        self._library = load_library(kernels or os.environ.get(KERNELS_VARIABLE) or AUTO)
        self._pages = HugePages(budget=TouchBudget())
        self._idle_work = IdleWork(self._pages.collapse_next)
        self._native = NativeKernels(self._library, self._pages) if self._library else None
        self.kernels: Kernels = self._native or ReferenceKernels()
        self._threads = _compute_threads(self._library)
        # Read once: the available memory shrinks as this process fills it.
        self._memory_bytes = memory_bytes or int(
            SHARE_OF_AVAILABLE * (available_memory() + resident_memory())
        )

    def check_cache(self, layout: CacheLayout) -> None:
        """Nothing: the kernels take every cache that a layout describes."""

    def facts(self) -> DeviceFacts:
        """The processor's name, and the kernels' variant."""
        kernels = self._library.variant if self._library else "reference"
        return DeviceFacts(
            device=self.name,
            name=processor_name(),
            software=f"{kernels} kernels",
            memory_bytes=self._memory_bytes,
        )

    def memory(self) -> Memory:
        """The given limit, or 0.8 of what was available at the start; and what is resident now."""
        return Memory(total=self._memory_bytes, used=resident_memory())

    def peak_memory(self, work: Callable[[], object]) -> int:
        """Most resident bytes while `work` runs."""
        return peak_memory(work)

    def set_num_threads(self, num_threads: int | None, *, rank: int = 0, num_ranks: int = 1) -> str:
        """Use a share of so many threads, at most one a core, for the process; None: one a core."""
        plan = self._threads.choose(num_threads, rank=rank, num_ranks=num_ranks)
        torch.set_num_threads(plan.num_threads)
        return plan.describe()

    def begin_steps(self) -> None:
        """Leave the cores to the kernels' threads, and collapse the pages of the weights.

        After an operator, torch's threads spin for milliseconds, in which the kernels' threads need
        the cores. torch's part of a step is small, and as fast with one thread, unless the kernels
        cannot compute all of a step.
        """
        if self._native and self._native.is_native:
            torch.set_num_threads(1)
        if self._library:
            self._idle_work.begin()

    def step(self) -> AbstractContextManager[None]:
        """Collapse no pages while a step is computed."""
        return self._idle_work.step()


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The name that the kernel has of the processor, or else that of its architecture."""
    with suppress(OSError):
        if name := _MODEL_NAME.search(cpuinfo.read_text(errors="replace")):
            return name[1].strip()
    return platform.machine()


def _compute_threads(library: Library | None) -> ComputeThreads:
    host = read_host_cores()
    settings = read_thread_settings(host)
    if library is None:
        settings = replace(settings, pin=Pin.OFF)  # torch places its own threads
    return ComputeThreads(
        host, settings, _core_locks(), library.use_threads if library else _ignore
    )


def _ignore(plan: ThreadPlan) -> None:
    """For torch alone, whose number of threads the runtime sets by itself."""


@cache
def _core_locks() -> CoreLocks:
    return CoreLocks()
