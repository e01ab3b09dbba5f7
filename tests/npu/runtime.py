"""The NPU back end's kernels on the memory and threads of this CPU."""

from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.graphs import Graphs
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.device.npu.step import DecodeStepInputs
from tandem_engine.kvcache.layout import CacheLayout
from tests.npu.recorded_graphs import RecordedGraph


class RecordedKernels(NpuKernels):
    """With graphs, of which there are none here."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[RecordedGraph] = []

    def graphs(self) -> Graphs:
        return Graphs(self._new, DecodeStepInputs)

    def _new(self) -> RecordedGraph:
        self.recorded.append(RecordedGraph())
        return self.recorded[-1]


class NpuOnCpu(CpuRuntime):
    """A runtime for `registry.BACKENDS`: the operators are those of `tests.npu.operators`."""

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes=memory_bytes, kernels="reference")
        self.kernels = RecordedKernels()

    def check_cache(self, layout: CacheLayout) -> None:
        """Take any: the operators do, inside of `any_size`."""
