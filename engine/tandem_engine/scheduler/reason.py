"""Why a sequence is not in a step: the words that metrics, records and people share."""

from enum import StrEnum


class Reason(StrEnum):
    """What a waiting, swapped or running sequence waited for."""

    TOKENS = "token_budget"
    """The tokens of the step are given away."""
    BATCH_SIZE = "batch_size"
    """maxBatchSize sequences run."""
    PREFILL_ROWS = "prefill_batch_size"
    """maxPrefillBatchSize, or maxNumPartialPrefills, prompts are in progress."""
    LONG_PREFILLS = "long_prefills"
    """maxLongPartialPrefills long prompts are in progress."""
    NO_BLOCKS = "kv_blocks"
    """Too few KV blocks are free."""
    PREFIX_PENDING = "prefix_pending"
    """Another sequence is computing the same beginning; it will be shared."""
    PREEMPTION = "preemption"
    """Running sequences lost their blocks in this step; nobody new takes any."""
    SWAPPED_OUT = "swapped_out"
    """Sequences that came before it have lost their blocks to the host: they come back first."""
    OTHER_STAGE = "other_stage"
    """The step is a decode step, or a prefill step."""
    BATCH_FORMING = "batch_forming"
    """The batch waits for more requests (static, dynamic, maxQueueDelayMicroseconds)."""
    BATCH_NOT_OVER = "batch_not_over"
    """All of the batch must end before the next one forms (static, dynamic)."""
    CHUNK_TOO_SMALL = "chunk_too_small"
    """What the promised TPOT leaves is too little to be worth a chunk."""
    BEAMS_TOGETHER = "beams_together"
    """Another beam of its request has no place, or has still to be computed again."""
