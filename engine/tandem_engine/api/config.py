"""The engine's settings. Names, ranges and defaults of scheduling are MindIE's ScheduleConfig."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandem_engine.api.model import Model

TILE = 16

DType = Literal["auto", "bfloat16", "float16", "float32"]
TemplateType = Literal["Standard", "Mix"]


def _whole_tiles(value: int) -> int:
    if value % TILE:
        raise ValueError(f"{value} is not a multiple of {TILE}")
    return value


def _size_or_all_that_is_left(value: int) -> int:
    if value == 0:
        raise ValueError(
            "0 is neither -1 (all that is left) nor a size in GiB; allowed: -1, or 1 or more"
        )
    return value


# MindIE's ranges, for the engine and for the manifest alike.
MaxSeqLen = Annotated[int, Field(ge=2)]
MaxInputTokenLen = Annotated[int, Field(ge=1, le=4194304)]
NpuMemSize = Annotated[int, Field(ge=-1, le=2147483647), AfterValidator(_size_or_all_that_is_left)]


class SplitFuseConfig(Model):
    """SplitFuse: prompt chunks ride in the same step as decodes, under a token budget."""

    enabled: bool | None = None
    """Cut prompts into chunks; absent means: when templateType is Mix, which it needs."""

    split_chunk_tokens: Annotated[int, Field(ge=16, le=8192), AfterValidator(_whole_tiles)] = 512
    """Tokens of one step, decodes and prompt chunks together; a multiple of 16."""

    split_start_type: bool = False
    """true: test splitStartBatchSize anew at every step; false: once it was met, keep splitting."""

    split_start_batch_size: Annotated[int, Field(ge=0)] = 16
    """Sequences in the batch from which prompts are cut; below, they run whole."""


class ScheduleConfig(Model):
    """How requests share the steps of one replica: MindIE's ScheduleConfig."""

    template_type: TemplateType = "Standard"
    """Standard: a step is all prefill or all decode. Mix: both in one step (SplitFuse)."""

    cache_block_size: Annotated[int, Field(ge=16, le=128), AfterValidator(_whole_tiles)] = 128
    """Tokens of one KV block; a multiple of 16."""

    max_prefill_batch_size: Annotated[int, Field(ge=0)] = 50
    """Sequences that may start or continue their prompt in one step; 0 means maxBatchSize."""

    max_prefill_tokens: Annotated[int, Field(ge=1, le=4194304)] = 8192
    """Prompt tokens of one step while prompts are not cut."""

    max_batch_size: Annotated[int, Field(ge=1, le=819200)] = 200
    """Sequences that may run at the same time."""

    max_iter_times: Annotated[int, Field(ge=1)] = 512
    """Largest number of output tokens of one request, whatever it asks for."""

    split_fuse: SplitFuseConfig = SplitFuseConfig()
    """SplitFuse, the way templateType Mix shares steps."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.split_fuse.enabled and self.template_type != "Mix":
            raise ValueError(
                "splitFuse.enabled needs templateType Mix, not Standard; "
                "set templateType: Mix or leave splitFuse.enabled out"
            )
        if self.split_fuse.enabled is False and self.template_type == "Mix":
            raise ValueError(
                "templateType Mix needs splitFuse.enabled true, not false; "
                "set templateType: Standard to run without SplitFuse"
            )
        # A default that is too large for a small maxBatchSize is lowered where it is used;
        # only a value that somebody wrote is refused.
        if "max_prefill_batch_size" in self.model_fields_set:
            self._at_most_batch_size("maxPrefillBatchSize", self.max_prefill_batch_size)
        if "split_start_batch_size" in self.split_fuse.model_fields_set:
            start = self.split_fuse.split_start_batch_size
            self._at_most_batch_size("splitFuse.splitStartBatchSize", start)
        return self

    def _at_most_batch_size(self, name: str, value: int) -> None:
        if value > self.max_batch_size:
            raise ValueError(
                f"{name} {value} is larger than maxBatchSize {self.max_batch_size}; "
                f"lower it or raise maxBatchSize"
            )

    @property
    def is_split_fuse(self) -> bool:
        """Whether decodes and prompt chunks share steps."""
        return self.template_type == "Mix"

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

    device: Literal["cpu"] = "cpu"
    """Device backend."""

    dtype: DType = "auto"
    """Type of weights, activations and KV cache; auto takes the checkpoint's."""

    max_seq_len: MaxSeqLen | None = None
    """Prompt and output of one request together (MindIE maxSeqLen); None takes the model's own."""

    max_input_token_len: MaxInputTokenLen | None = None
    """Longest prompt (MindIE maxInputTokenLen); None means max_seq_len − 1."""

    npu_mem_size: NpuMemSize = -1
    """KV cache memory in GiB; -1: what is left after weights and the largest step."""

    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    """Memory of this replica in bytes; None: 0.8 of what the machine has available."""

    num_kv_blocks: Annotated[int, Field(gt=0)] | None = None
    """KV blocks, given outright; for tests and simulations. Overrides npu_mem_size."""

    num_threads: Annotated[int, Field(gt=0)] | None = None
    """Compute threads; None leaves the choice to the device."""

    schedule: ScheduleConfig = ScheduleConfig()
    """How requests share steps."""
