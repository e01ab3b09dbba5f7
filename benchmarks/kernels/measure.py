"""Time two ways of computing the same in alternation, and what the machine can do at most."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from benchmarks.kernels.shapes import random_tensor
from tandem_engine.device.cpu.huge_pages import zeros_in_huge_pages
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.packing import pack

Work = Callable[[], object]

_READ_BYTES: Final = 256 << 20
"""Far more than caches hold."""
_SPINNING_S: Final = 0.03
"""libgomp's threads, which are torch's, spin for about half as long after a product."""
_PEAK_SHAPE: Final = (512, 1024, 6144)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Measures durations.

    With one thread it is that thread's CPU time, which other processes hardly change; with more it
    is the time on the wall, which says little on a busy machine.
    """

    num_threads: int
    seconds: float
    """Seconds of each measurement, at least three rounds."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds."""
        return time.thread_time if self.num_threads == 1 else time.perf_counter

    def alternate(self, works: Mapping[str, Work], *, in_a_row: int = 1) -> dict[str, float]:
        """Median seconds of each, one after another in every round.

        Args:
            works: Functions that take turns.
            in_a_row: How often each works in a turn. With more than once it has the caches and
                the cores to itself: a turn begins when the other's threads no longer spin, and
                its first time does not count.
        """
        for work in works.values():
            work()
        taken: dict[str, list[float]] = {name: [] for name in works}
        clock, end = self.clock, time.perf_counter() + self.seconds
        rounds = 0
        while rounds < 3 or time.perf_counter() < end:  # noqa: PLR2004 - see above
            rounds += 1
            for name, work in works.items():
                if in_a_row > 1:
                    time.sleep(_SPINNING_S)
                    work()
                for _ in range(in_a_row):
                    begin = clock()
                    work()
                    taken[name].append(clock() - begin)
        return {name: median(times) for name, times in taken.items()}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this machine, measured in this run."""

    read_bytes_per_s: float
    """Random data in huge pages, read once from front to back."""
    gemm_per_s: float
    """Operations a second of a large bfloat16 product, the better of oneDNN's and ours; a
    multiplication counts 2."""


def measure_limits(watch: Stopwatch, native: NativeKernels) -> Limits:
    """Memory and products, measured as the kernels are."""
    data = zeros_in_huge_pages((_READ_BYTES // 4,), torch.float32)
    data.uniform_()
    rows, inputs, outputs = _PEAK_SHAPE
    x, weight = random_tensor(rows, inputs), random_tensor(outputs, inputs)
    packed = pack(native, weight)
    taken = watch.alternate(
        {
            "read": lambda: native.library.read(data.data_ptr(), data.numel()),
            "onednn": lambda: F.linear(x, weight),
            "native": lambda: native.linear(x, packed),
        }
    )
    return Limits(
        read_bytes_per_s=data.nbytes / taken["read"],
        gemm_per_s=2 * rows * inputs * outputs / min(taken["onednn"], taken["native"]),
    )
