"""Input and output of a batch size policy."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeView:
    """The scheduler before a step."""

    num_running: int
    """Sequences that hold KV blocks."""
    num_waiting: int
    """Requests that wait."""
    mean_context: float = 0.0
    """Tokens in the cache of a running sequence, on average."""
    tokens_per_row: float = 1.0
    """Tokens of a decode row: one, and its drafts."""
    blocks_per_row: float = 0.0
    """KV blocks that a sequence needs until its end, on average; 0: not known yet."""
    num_blocks: int = 0
    """KV blocks of the pool, free or held."""


class BatchLimits(NamedTuple):
    """maxBatchSize and maxPrefillBatchSize as they are in force for one step."""

    max_batch_size: int
    """Sequences that may run at the same time."""
    max_prefill_batch_size: int
    """Sequences that may work on their prompt in this step; 0: none."""
