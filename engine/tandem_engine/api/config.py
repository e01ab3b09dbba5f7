"""The engine's settings. Names, ranges and defaults of scheduling are MindIE's ScheduleConfig."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from tandem_engine.api.checks import Check, Constant, Expression, Value, Written, at_most
from tandem_engine.api.constraints import MultipleOf, NotEqual
from tandem_engine.api.device_facts import Device
from tandem_engine.api.micro_batches import CHECKS as MICRO_BATCH_CHECKS
from tandem_engine.api.micro_batches import (
    CclConfig,
    Graph,
    StreamOptions,
    quantization_checks,
)
from tandem_engine.api.model import Model
from tandem_engine.api.parallelism import (
    ParallelismConfig as ParallelismConfig,  # noqa: PLC0414  # a part of these settings
)
from tandem_engine.api.parallelism import num_ranks
from tandem_engine.api.slo import Slo
from tandem_engine.api.speculation import SpeculationConfig

TILE = 16
MAX_TOKEN_ID: Final = 2**24 - 1
"""Far above any vocabulary."""
MAX_EOS_TOKEN_IDS: Final = 64
WHOLE_TILES: Final = MultipleOf(TILE)
MOST_ROWS_ON_A_CARD: Final = 4096
"""Of one call of attention, by the page of npu_fused_infer_attention_score."""

DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["auto", "none", "w8a8"]
GenerationConfig = Literal["auto", "none"]
KVCacheDType = Literal["auto", "int8"]
MetricAlias = Literal["vllm", "mindie"]
TemplateType = Literal["Standard", "Mix"]
Batching = Literal["static", "dynamic", "continuous", "chunked", "splitfuse"]
Strategy = Literal["static", "dynamic", "continuous", "chunked", "splitfuse", "speculative"]

# MindIE's default of maxN.
_LARGEST_N: Final = 128


def _whole_number(value: Any) -> Any:
    # True and 1.0 are equal to 1, which is enough for a Literal.
    if type(value) is not int:
        raise PydanticKnownError("int_type")
    return value


PhasePolicy = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_whole_number)]
MixPolicy = Annotated[Literal[0, 4, 5, 6, 7], BeforeValidator(_whole_number)]
StagePolicy = Annotated[Literal[0, 1, 2], BeforeValidator(_whole_number)]
# MindIE's ranges, for the engine and for the manifest alike.
MaxSeqLen = Annotated[int, Field(ge=2)]
MaxInputTokenLen = Annotated[int, Field(ge=1, le=4194304)]
_SIZE_OR_ALL_THAT_IS_LEFT: Final = NotEqual(
    0, "0 is neither -1 (all that is left) nor a size in GiB; allowed: -1, or 1 or more"
)
NpuMemSize = Annotated[int, Field(ge=-1, le=2147483647), AfterValidator(_SIZE_OR_ALL_THAT_IS_LEFT)]
CpuMemSize = Annotated[int, Field(ge=0, le=1048576)]
EosTokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
EosTokenIds = Annotated[
    tuple[EosTokenId, ...], Field(min_length=1, max_length=MAX_EOS_TOKEN_IDS, strict=False)
]


class SplitFuseConfig(Model):
    """SplitFuse: prompt chunks ride in the same step as decodes, under a token budget.

    The parameters are those of both generations of MindIE: up to 2.3 (split…, policyType) and 3.0
    (prefillChunkSize and the limits on partial prefills). The scheduler up to 2.3 is closed; where
    its documents leave a meaning open, the one here is ours, and the docstring of the code that
    carries it out says so.
    """

    enabled: bool | None = None
    """Cut prompts into chunks; absent means: when templateType is Mix, which it needs."""

    split_chunk_tokens: Annotated[int, Field(ge=16, le=8192), AfterValidator(WHOLE_TILES)] = 512
    """Tokens of one step, decodes and prompt chunks together; a multiple of 16. With an SLO it is
    the upper bound of the budget, which every step chooses."""

    split_type: bool = False
    """false: every prompt is cut at what the step has left. true: only prompts longer than twice
    splitChunkTokens are cut; shorter ones run whole."""

    split_start_type: bool = False
    """true: test splitStartBatchSize at every step; false: once it was met, keep splitting."""

    split_start_batch_size: Annotated[int, Field(ge=0)] = 16
    """Sequences in the batch from which prompts are cut; below, they run whole."""

    policy_type: MixPolicy = 0
    """Order of requests: 0 first come first served, 4 shortest job first, 5 longest job first,
    6 skip-join MLFQ, 7 MLFQ with the shortest job first inside a level."""

    prefill_chunk_size: Annotated[int, Field(ge=0, le=4194304)] | None = None
    """Prompt tokens of one request in one step at most, never over maxPrefillTokens; 0 or absent:
    the budget is shared out over the prompts in progress."""

    max_num_partial_prefills: Annotated[int, Field(ge=1, le=64)] = 64
    """Prompts that may be in progress at once."""

    long_prefill_token_threshold: Annotated[int, Field(ge=1, le=8192)] = 1024
    """A prompt with more tokens to compute than this is long."""

    max_long_partial_prefills: Annotated[int, Field(ge=1, le=64)] = 8
    """Long prompts that may be in progress at once; others are skipped, so that short ones
    behind them start. Never over maxNumPartialPrefills."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        at_most("maxLongPartialPrefills", "maxNumPartialPrefills"),
    )

    @property
    def largest_chunk(self) -> int | None:
        """prefillChunkSize; None: the budget is shared out."""
        return self.prefill_chunk_size or None

    @property
    def long_prefills(self) -> int:
        """Long prompts in progress at once: never more than prompts in progress at all."""
        return min(self.max_long_partial_prefills, self.max_num_partial_prefills)


def is_mix(path: str = "") -> Expression:
    """Return the expression that decodes and prompt chunks share steps; `path` leads there."""
    return Value(f"{path}templateType").equals("Mix")


_SPLITFUSE: Final = Value("strategy").equals("splitfuse")
_SPECULATIVE: Final = Value("strategy").equals("speculative")
_TEMPLATE_CHECKS: Final = (
    Check(
        field="splitFuse.enabled",
        refused=~is_mix() & Written("splitFuse.enabled") & Value("splitFuse.enabled"),
        problem="splitFuse.enabled needs templateType Mix, not Standard; "
        "set templateType: Mix or leave splitFuse.enabled out",
    ),
    Check(
        field="splitFuse.enabled",
        refused=is_mix() & Written("splitFuse.enabled") & ~Value("splitFuse.enabled"),
        problem="templateType Mix needs splitFuse.enabled true, not false; "
        "set templateType: Standard to run without SplitFuse",
    ),
    Check(
        field="strategy",
        refused=_SPLITFUSE & ~is_mix(),
        problem="strategy splitfuse needs templateType Mix, not Standard; "
        "set templateType: Mix or leave strategy out",
    ),
    Check(
        field="strategy",
        refused=is_mix() & Written("strategy") & ~_SPLITFUSE & ~_SPECULATIVE,
        problem="strategy {strategy} needs templateType Standard, not Mix; "
        "set templateType: Standard or leave strategy out",
    ),
    Check(
        field="splitFuse.policyType",
        refused=~is_mix() & ~Value("splitFuse.policyType").equals(0),
        problem="splitFuse.policyType {splitFuse.policyType} orders the steps of templateType Mix, "
        "not Standard; set templateType: Mix, or prefillPolicyType in its place",
    ),
)


def _needs_continuous(strategy: str, refused: Expression) -> Check:
    """Return the check that a stage is chosen only where there is a choice."""
    return Check(
        field="stageSelectPolicy",
        refused=~Value("stageSelectPolicy").equals(0) & refused,
        problem=f"stageSelectPolicy {{stageSelectPolicy}} needs strategy continuous, not {strategy}"
        ", which leaves no choice between prefill and decode; leave one of the two out",
    )


def _one_order(name: str) -> Check:
    """Return the check that an order of one phase excludes an order of SplitFuse."""
    return Check(
        field=name,
        refused=~Value(name).equals(0) & ~Value("splitFuse.policyType").equals(0),
        problem=f"{name} {{{name}}} and splitFuse.policyType {{splitFuse.policyType}} are both an "
        "order of requests; leave one of the two out",
    )


_POLICY_CHECKS: Final = (
    _needs_continuous(
        "{strategy}",
        Written("strategy") & ~Value("strategy").equals("continuous") & ~_SPECULATIVE,
    ),
    _needs_continuous("splitfuse", is_mix() & (~Written("strategy") | _SPECULATIVE)),
    Check(
        field="supportSelectBatch",
        refused=Value("stageSelectPolicy").equals(2) & Value("supportSelectBatch"),
        problem="supportSelectBatch true means stageSelectPolicy 1, not 2; "
        "leave one of the two out",
    ),
    _one_order("prefillPolicyType"),
    _one_order("decodePolicyType"),
    Check(
        field="dynamicBatchSizeEnable",
        refused=Value("dynamicBatchSizeEnable") & is_mix(),
        problem="dynamicBatchSizeEnable needs templateType Standard, not Mix; leave it out, and "
        "give an SLO (spec.slo), by which the budget of every step is chosen",
    ),
)


class ScheduleConfig(Model):
    """How requests share the steps of one replica: MindIE's ScheduleConfig."""

    template_type: TemplateType = "Standard"
    """Standard: a step is all prefill or all decode. Mix: both in one step (SplitFuse), the default
    with an SLO."""

    strategy: Strategy | None = None
    """How batches form; absent means continuous with templateType Standard and splitfuse with Mix.
    static: maxBatchSize requests form a batch, and all of them finish before the next one forms.
    dynamic: the same, but a batch also forms maxQueueDelayMicroseconds after its first request.
    continuous: requests join and leave at every step. chunked: steps with prompt chunks of
    maxPrefillTokens alternate with decode steps. splitfuse: both in one step. speculative: the same
    as absent, with engine.speculation on."""

    cache_block_size: Annotated[int, Field(ge=16, le=128), AfterValidator(WHOLE_TILES)] = 128
    """Tokens of one KV block; a multiple of 16."""

    max_prefill_batch_size: Annotated[int, Field(ge=0)] = 50
    """Sequences that may start or continue their prompt in one step; 0 means maxBatchSize."""

    max_prefill_tokens: Annotated[int, Field(ge=1, le=4194304)] = 8192
    """Prompt tokens of one step while prompts are not cut."""

    prefill_time_ms_per_req: Annotated[int, Field(ge=0, le=1000)] = 150
    """Assumed cost of one prefill where stageSelectPolicy is 1."""

    prefill_policy_type: PhasePolicy = 0
    """Order in which requests start: 0 first come first served, 1 those first that never lost their
    blocks, 2 by priority, 3 MLFQ. Not with splitFuse.policyType."""

    decode_time_ms_per_req: Annotated[int, Field(ge=0, le=1000)] = 50
    """Assumed cost of one decode step where stageSelectPolicy is 1."""

    decode_policy_type: PhasePolicy = 0
    """Order of running requests where not all go on, and of victims where blocks are short: 0 first
    come first served, 1 those first that never lost their blocks, 2 by priority, 3 MLFQ. Not with
    splitFuse.policyType."""

    max_batch_size: Annotated[int, Field(ge=1, le=819200)] = 200
    """Sequences that may run at the same time."""

    max_iter_times: Annotated[int, Field(ge=1)] = 512
    """Largest number of output tokens of one request, also where it asks for more."""

    max_preempt_count: Annotated[int, Field(ge=0)] = 0
    """Sequences that one step may swap out to host memory; more are recomputed. Above 0 it needs
    cpuMemSize. At most maxBatchSize."""

    support_select_batch: bool = False
    """MindIE's older name of stageSelectPolicy 1; ignored unless the strategy is continuous, as
    MindIE does with SplitFuse."""

    max_queue_delay_microseconds: Annotated[int, Field(ge=500, le=1000000)] = 5000
    """How long the oldest waiting request may wait for a fuller prefill batch."""

    max_first_token_wait_time: Annotated[int, Field(ge=0, le=3600000)] = 2500
    """Milliseconds after which a request that never ran and finds no blocks takes those of a
    running one."""

    max_n: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Largest n, best_of or beam width of a request; absent means 128, never over maxBatchSize."""

    stage_select_policy: StagePolicy = 0
    """Prefill or decode next, with the strategy continuous: 0 prefill first, 1 throughput first
    (accumulated waste), 2 least laxity first (predicted latency)."""

    dynamic_batch_size_enable: bool = False
    """Follow decodeExpectedTime with the batch size, by MindIE's bisection. Like MindIE's, not with
    SplitFuse: an SLO chooses the budget of every step there."""

    prefill_expected_time: Annotated[int, Field(ge=1, le=10000)] = 1500
    """TTFT in milliseconds that stageSelectPolicy 2 and bufferResponseEnabled go by."""

    decode_expected_time: Annotated[int, Field(ge=1, le=10000)] = 50
    """TPOT in milliseconds that stageSelectPolicy 2, dynamicBatchSizeEnable and
    bufferResponseEnabled go by."""

    buffer_response_enabled: bool = False
    """Hold tokens back until shortly before their expected time, so that they come evenly."""

    enable_prefix_cache: bool = True
    """Keep the blocks of prompts and answers, and compute what requests have in common once."""

    no_evict: bool = False
    """Admit a request only when prompt and longest output have their blocks for sure: nothing is
    ever preempted, and fewer requests run at once."""

    async_scheduling_enable: bool = False
    """Prepare the next step while one is computed; its tokens are put in on the device. MindIE has
    the variable MINDIE_ASYNC_SCHEDULING_ENABLE for it. A request that ends by an end token or a
    stop string is computed once more, and the result is discarded. A step waits for the one before
    it where there are beams, where that one has drafts or is followed by some, or where it would
    preempt."""

    split_fuse: SplitFuseConfig = SplitFuseConfig()
    """SplitFuse, the way templateType Mix shares steps."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        *_TEMPLATE_CHECKS,
        *_POLICY_CHECKS,
        # A default that is too large for a small maxBatchSize is lowered where it is used;
        # only a value that is given is refused.
        at_most("maxPrefillBatchSize", "maxBatchSize"),
        at_most("maxPreemptCount", "maxBatchSize"),
        at_most("maxN", "maxBatchSize"),
        at_most("splitFuse.splitStartBatchSize", "maxBatchSize"),
        at_most("splitFuse.prefillChunkSize", "maxPrefillTokens"),
    )

    @property
    def is_split_fuse(self) -> bool:
        """True if decodes and prompt chunks share steps."""
        return self.template_type == "Mix"

    @property
    def batching(self) -> Batching:
        """The strategy by which batches form, written down or not."""
        if self.strategy is None or self.strategy == "speculative":
            return "splitfuse" if self.is_split_fuse else "continuous"
        return self.strategy

    @property
    def cuts_prompts(self) -> bool:
        """True if a prompt may be larger than a step."""
        return self.batching in {"chunked", "splitfuse"}

    @property
    def stage_policy(self) -> Literal[0, 1, 2]:
        """stageSelectPolicy; supportSelectBatch, where it has a meaning, is the name of its 1."""
        by_old_name = self.support_select_batch and self.batching == "continuous"
        return 1 if by_old_name else self.stage_select_policy

    @property
    def largest_n(self) -> int:
        """maxN, written down or not."""
        return min(self.max_n or _LARGEST_N, self.max_batch_size)

    @property
    def prefill_rows(self) -> int:
        """Sequences that may prefill in one step: maxPrefillBatchSize, never over maxBatchSize."""
        return min(self.max_prefill_batch_size or self.max_batch_size, self.max_batch_size)

    @property
    def split_start_rows(self) -> int:
        """Rows from which prompts are cut: splitStartBatchSize, never over maxBatchSize."""
        return min(self.split_fuse.split_start_batch_size, self.max_batch_size)

    @property
    def largest_step(self) -> int:
        """Tokens of the largest step that these settings allow."""
        cut = self.split_fuse.split_chunk_tokens if self.is_split_fuse else 0
        return max(self.max_prefill_tokens + self.max_batch_size, cut)


class EngineConfig(Model):
    """All that one replica's engine needs to know, read once and handed down."""

    model_path: str
    """Folder of a checkpoint in Hugging Face layout."""

    device: Device = "cpu"
    """Device backend."""

    dtype: DType = "auto"
    """Type of weights, activations and KV cache; auto takes the checkpoint's."""

    kv_cache_dtype: KVCacheDType = "auto"
    """Type of the KV cache; auto: `dtype`; int8: with a scale for each token and KV head."""

    quantization: Quantization = "auto"
    """Linear layers in 8 bits. auto: as the checkpoint is; w8a8: a float checkpoint is quantised as
    it is read; none: a checkpoint in 8 bits is refused."""

    max_seq_len: MaxSeqLen | None = None
    """Prompt and output of one request together (MindIE maxSeqLen); None takes the model's own, or
    what the memory holds."""

    max_input_token_len: MaxInputTokenLen | None = None
    """Longest prompt (MindIE maxInputTokenLen); None means max_seq_len − 1."""

    eos_token_ids: EosTokenIds | None = None
    """Tokens that end an answer; None: those that the checkpoint's files name. A JSON list."""

    generation_config: GenerationConfig = "auto"
    """Sampling parameters that hold where a request is silent. auto: those of the checkpoint's
    generation_config.json; none: the engine's own."""

    split_special_tokens: bool = True
    """Encode special tokens that messages spell as text, as transformers' split_special_tokens
    does with a whole text."""

    npu_mem_size: NpuMemSize = -1
    """KV cache memory in GiB; -1: what is left after weights and the largest step."""

    cpu_mem_size: CpuMemSize = 0
    """Host memory for swapped-out KV blocks in GiB; needed where maxPreemptCount is above 0."""

    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """Main memory of this replica in bytes; None: 0.8 of what the machine has available. On a CPU
    weights and KV cache are in it; a card has its own memory, of which 0.9 of what is free is used.
    """

    num_kv_blocks: Annotated[int, Field(gt=0)] | None = None
    """KV blocks, given outright; for tests and simulations. Overrides npu_mem_size."""

    num_threads: Annotated[int, Field(gt=0)] | None = None
    """Compute threads of all ranks; None leaves the choice to the device."""

    num_host_blocks: Annotated[int, Field(ge=0)] | None = None
    """Host blocks, given outright; for tests and simulations. Overrides cpu_mem_size."""

    parallelism: ParallelismConfig = ParallelismConfig()
    """Ranks of this replica; memory and threads are shared by them."""

    stream_options: StreamOptions = StreamOptions()
    """Streams of a rank: micro-batches."""

    ccl: CclConfig = CclConfig()
    """Communication between ranks."""

    graph: Graph = "cpp"
    """The graph of a step (MindIE engine.graph). python: steps of decodes are recorded on a card
    when the engine starts, and replayed; not with micro-batches."""

    unsafe_combinations: bool = False
    """Allow combinations with micro-batches that are not tested."""

    speculation: SpeculationConfig = SpeculationConfig()
    """Draft tokens."""

    schedule: ScheduleConfig = ScheduleConfig()
    """How requests share steps."""

    slo: Slo = Slo()
    """The latency targets; with one, the budget of every step is chosen by it."""

    metric_aliases: Annotated[tuple[MetricAlias, ...], Field(strict=False)] = ()
    """Other engines under whose metric names the series stand as well; a JSON list."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="numThreads",
            refused=Written("numThreads") & (Value("numThreads") < num_ranks("parallelism.")),
            problem="numThreads {numThreads} leaves some of the {ranks} ranks of parallelism "
            "without a thread; raise it to {ranks} or more, or lower parallelism",
            values={"ranks": num_ranks("parallelism.")},
        ),
        Check(
            field="schedule.maxBatchSize",
            refused=Value("device").equals("npu")
            & (Value("schedule.maxBatchSize") > Constant(MOST_ROWS_ON_A_CARD)),
            problem="schedule.maxBatchSize {schedule.maxBatchSize} is more rows than attention on "
            f"an NPU takes in a step, {MOST_ROWS_ON_A_CARD}; lower it",
        ),
        *MICRO_BATCH_CHECKS,
        *quantization_checks("", "quantization"),
    )

    @property
    def is_on_card(self) -> bool:
        """True if weights and KV cache are in the memory of a card."""
        return self.device != "cpu"

    @model_validator(mode="after")
    def _swaps_have_blocks(self) -> Self:
        count = self.schedule.max_preempt_count
        blocks = self.cpu_mem_size if self.num_host_blocks is None else self.num_host_blocks
        if count and not blocks:
            raise ValueError(swap_without_memory("schedule.maxPreemptCount", count, "cpuMemSize"))
        return self


def swap_without_memory(swaps: str, count: int | str, memory: str) -> str:
    """The sentence on swaps that have no host memory to go to, under the names that are given."""
    return (
        f"{swaps} {count} swaps out to host memory, and {memory} is 0; "
        f"give {memory} at least 1 (GiB), or leave {swaps} out to recompute"
    )
