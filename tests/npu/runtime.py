"""The NPU back end's kernels on the memory and threads of this CPU."""

from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.kvcache.layout import CacheLayout


class NpuOnCpu(CpuRuntime):
    """A runtime for `registry.BACKENDS`: the operators are those of `tests.npu.operators`."""

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes=memory_bytes, kernels="reference")
        self.kernels = NpuKernels()

    def check_cache(self, layout: CacheLayout) -> None:
        """Take any: the operators do, inside of `any_size`."""
