"""Checks of `spec.resources` against the engine's settings: ranks, cards and memory."""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from tandem_engine.api.checks import Check, Constant, Expression, Value
from tandem_engine.api.config import MOST_ROWS_ON_A_CARD, swap_without_memory
from tandem_engine.api.parallelism import num_ranks
from tandem_serve.api.quantity import parse_memory

GIBIBYTE: Final = 2**30
_SCHEDULE: Final = "engine.schedule."


@dataclass(frozen=True, slots=True)
class Gibibytes(Expression):
    """The bytes of several fields in GiB; a negative one counts as 0."""

    paths: tuple[str, ...]

    def evaluate(self, model: BaseModel) -> int:
        """Return the bytes."""
        sizes: list[int] = [Value(path).evaluate(model) for path in self.paths]
        return sum(max(size, 0) for size in sizes) * GIBIBYTE


@dataclass(frozen=True, slots=True)
class Bytes(Expression):
    """The bytes of a field that is an amount of memory."""

    path: str

    def evaluate(self, model: BaseModel) -> int:
        """Return the bytes."""
        return parse_memory(Value(self.path).evaluate(model))


_RANKS: Final = num_ranks("engine.parallelism.")
RANK_CHECKS: Final = (
    Check(
        field="resources.cpu",
        refused=Value("resources.cpu") < _RANKS,
        problem="resources.cpu {resources.cpu} leaves some of the {ranks} ranks of "
        "engine.parallelism without a thread; set cpu to {ranks} or more, or lower parallelism",
        values={"ranks": _RANKS},
    ),
)
_HAS_CARDS: Final = ~Value("resources.npu").equals(0)
NPU_CHECKS: Final = (
    Check(
        field="resources.npu",
        refused=_HAS_CARDS & Value("engine.device").equals("cpu"),
        problem="resources.npu {resources.npu} reserves cards, and engine.device cpu computes on "
        "none of them; leave npu and npuProfile out, or set engine.device: npu",
    ),
    Check(
        field="resources.npu",
        refused=~_HAS_CARDS & Value("engine.device").equals("npu"),
        problem="engine.device npu computes on cards, and resources.npu is 0; set npu: {ranks}, a "
        "card for each rank of engine.parallelism, or engine.device: cpu",
        values={"ranks": _RANKS},
    ),
    Check(
        field="resources.npu",
        refused=_HAS_CARDS & ~Value("resources.npu").equals(_RANKS),
        problem="resources.npu {resources.npu} is not the {ranks} of engine.parallelism's ranks, "
        "each of which computes on one card; set npu: {ranks}, or change parallelism",
        values={"ranks": _RANKS},
    ),
    Check(
        field="engine.ccl.enableMc2",
        refused=~_HAS_CARDS & Value("engine.ccl.enableMc2") & Value("engine.device").equals("auto"),
        problem="engine.ccl.enableMc2 true needs cards, which multiply and add up among ranks in "
        "one operator, and resources.npu is 0; set npu: {ranks}, or leave enableMc2 out",
        values={"ranks": _RANKS},
    ),
    Check(
        field="engine.graph",
        refused=~_HAS_CARDS
        & Value("engine.graph").equals("python")
        & Value("engine.device").equals("auto"),
        problem="engine.graph python needs cards, on which steps are recorded and replayed, and "
        "resources.npu is 0; set npu: {ranks}, or leave graph out",
        values={"ranks": _RANKS},
    ),
    Check(
        field="engine.kvCacheDtype",
        refused=_HAS_CARDS & Value("engine.kvCacheDtype").equals("int8"),
        problem="engine.kvCacheDtype int8 has no kernel on an NPU yet; leave it out there",
    ),
    Check(
        field="engine.dtype",
        refused=_HAS_CARDS & Value("engine.dtype").equals("float32"),
        problem="engine.dtype float32 is none that attention on an NPU takes; set bfloat16 or "
        "float16, or auto",
    ),
    Check(
        field=f"{_SCHEDULE}maxBatchSize",
        refused=_HAS_CARDS & (Value(f"{_SCHEDULE}maxBatchSize") > Constant(MOST_ROWS_ON_A_CARD)),
        problem="engine.schedule.maxBatchSize {engine.schedule.maxBatchSize} is more rows than "
        f"attention on an NPU takes in a step, {MOST_ROWS_ON_A_CARD}; lower it",
    ),
)
MEMORY_CHECKS: Final = (
    Check(
        field="engine.npuMemSize",
        refused=~_HAS_CARDS & (Gibibytes(("engine.npuMemSize",)) >= Bytes("resources.memory")),
        problem="engine.npuMemSize {engine.npuMemSize} (GiB) leaves nothing of resources.memory "
        "{resources.memory} for the weights; lower it, set -1, or raise resources.memory",
    ),
    Check(
        field="engine.cpuMemSize",
        refused=~_HAS_CARDS
        & ~Value("engine.cpuMemSize").equals(0)
        & (Gibibytes(("engine.cpuMemSize", "engine.npuMemSize")) >= Bytes("resources.memory")),
        problem="engine.cpuMemSize {engine.cpuMemSize} (GiB), with engine.npuMemSize "
        "{engine.npuMemSize}, leaves nothing of resources.memory {resources.memory} for the "
        "weights; lower it or raise resources.memory",
    ),
    Check(
        field="engine.cpuMemSize",
        refused=_HAS_CARDS & (Gibibytes(("engine.cpuMemSize",)) >= Bytes("resources.memory")),
        problem="engine.cpuMemSize {engine.cpuMemSize} (GiB) leaves nothing of resources.memory "
        "{resources.memory} for the process; lower it or raise resources.memory",
    ),
    Check(
        field=f"{_SCHEDULE}maxPreemptCount",
        refused=~Value(f"{_SCHEDULE}maxPreemptCount").equals(0)
        & Value("engine.cpuMemSize").equals(0),
        problem=swap_without_memory(
            "engine.schedule.maxPreemptCount",
            "{engine.schedule.maxPreemptCount}",
            "engine.cpuMemSize",
        ),
    ),
)
