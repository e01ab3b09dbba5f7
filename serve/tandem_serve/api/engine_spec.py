"""`spec.engine`: the settings of one replica's engine."""

from typing import ClassVar, Final, Literal

from tandem_engine.api.checks import Check, Value, Written
from tandem_engine.api.config import (
    CpuMemSize,
    DType,
    KVCacheDType,
    NpuMemSize,
    ParallelismConfig,
    ScheduleConfig,
)
from tandem_engine.api.device_facts import Device
from tandem_engine.api.micro_batches import CHECKS, CclConfig, Graph, StreamOptions
from tandem_engine.api.model import Model
from tandem_serve.api.speculation_spec import SpeculationSpec

_SPECULATIVE_CHECK: Final = Check(
    field="speculation.method",
    refused=Written("schedule.strategy")
    & Value("schedule.strategy").equals("speculative")
    & Written("speculation.method")
    & Value("speculation.method").equals("none"),
    problem="schedule.strategy speculative needs drafts, and speculation.method is none; "
    "leave one of the two out",
)


DeviceChoice = Literal["auto", Device]


class EngineSpec(Model):
    """Settings of one replica's engine."""

    device: DeviceChoice = "auto"
    """Device that computes. auto: npu where resources.npu requests cards, else cpu."""

    dtype: DType = "auto"
    """Type of weights, activations and KV cache; auto takes the checkpoint's."""

    kv_cache_dtype: KVCacheDType = "auto"
    """Type of the KV cache. auto: dtype; int8: 8 bits with a scale for each token and KV head
    (MindIE's C8), about half the memory of bfloat16."""

    npu_mem_size: NpuMemSize = -1
    """KV cache memory of a replica in GiB, of the device that computes; -1 takes what weights and
    the largest step leave."""

    cpu_mem_size: CpuMemSize = 0
    """Host memory of a replica for KV blocks that are swapped out, in GiB; part of
    resources.memory. maxPreemptCount above 0 needs it."""

    parallelism: ParallelismConfig = ParallelismConfig()
    """Ranks of a replica: processes that share the model, and resources with it."""

    stream_options: StreamOptions = StreamOptions()
    """Streams that a rank computes and communicates on: MindIE's stream_options."""

    ccl: CclConfig = CclConfig()
    """Communication between ranks: MindIE's ccl."""

    graph: Graph = "cpp"
    """Graph of a step, as MindIE's engine.graph. python: steps of decodes are recorded on a card,
    and replayed; not with micro-batches, and never run on a card so far."""

    unsafe_combinations: bool = False
    """Allow what is refused with streamOptions.microBatch because it is not tested: linear layers
    in float, other types of models, one rank of tp. What would be wrong stays refused."""

    speculation: SpeculationSpec = SpeculationSpec()
    """Draft tokens: guesses that a step checks side by side, which changes no answer."""

    schedule: ScheduleConfig = ScheduleConfig()
    """Sharing of a replica's steps between requests: MindIE's ScheduleConfig."""

    CHECKS: ClassVar[tuple[Check, ...]] = (*CHECKS, _SPECULATIVE_CHECK)
