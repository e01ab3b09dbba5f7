"""The reasons that a sequence is not in a step, as metrics, records and explanations name them."""

from enum import StrEnum


class Reason(StrEnum):
    """Reasons that a sequence, waiting, swapped or running, had to wait."""

    TOKENS = "token_budget"
    """The token budget of the step is exhausted."""
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
    """Running sequences lost their blocks in this step; no waiting one takes any."""
    SWAPPED_OUT = "swapped_out"
    """Sequences that arrived before it are swapped out: they come back first."""
    OTHER_STAGE = "other_stage"
    """The step is a decode step, or a prefill step."""
    BATCH_FORMING = "batch_forming"
    """The batch waits for more requests (static, dynamic, maxQueueDelayMicroseconds)."""
    BATCH_NOT_OVER = "batch_not_over"
    """All of the batch must end before the next one forms (static, dynamic)."""
    CHUNK_TOO_SMALL = "chunk_too_small"
    """The TPOT target leaves too few tokens for a chunk."""
    BEAMS_TOGETHER = "beams_together"
    """Another beam of its request has no row, or has still to be computed again."""
