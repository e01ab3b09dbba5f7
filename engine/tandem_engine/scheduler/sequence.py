"""What the scheduler knows of a request: counts and block ids, never tokens."""

from dataclasses import dataclass, field

from tandem_engine.api.output import FinishReason
from tandem_engine.api.request import Request


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One request on its way through the scheduler.

    0 ──────────── num_computed ──────────── num_tokens ─────────── max_total
      in the cache                known, to compute      not yet sampled
    """

    request_id: str
    max_total: int
    min_total: int
    """A stop id ends it only beyond this many tokens."""
    stop_token_ids: frozenset[int]
    num_tokens: int
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    num_skipped: int = 0
    """Steps in a row that had no place for its next token."""

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that are not in the cache yet."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether just the newest token is missing from the cache: one token a step.

        A prompt of which one token is left counts too: it costs a step the same.
        """
        return self.num_uncomputed == 1

    def append(self, token_id: int) -> FinishReason | None:
        """Note one sampled token; return why the sequence ends with it, if it does."""
        self.num_tokens += 1
        if token_id in self.stop_token_ids and self.num_tokens > self.min_total:
            return "stop"
        if self.num_tokens >= self.max_total:
            return "length"
        return None

    def forget_cache(self) -> list[int]:
        """Drop all that was computed, to be computed again; return the blocks to give back."""
        blocks, self.block_table = self.block_table, []
        self.num_computed = 0
        return blocks


def sequence_of(request: Request) -> Sequence:
    """The scheduler's view of `request`."""
    num_prompt = len(request.prompt_token_ids)
    return Sequence(
        request_id=request.request_id,
        max_total=num_prompt + request.max_new_tokens,
        min_total=num_prompt + request.sampling.min_tokens,
        stop_token_ids=request.stop_token_ids,
        num_tokens=num_prompt,
    )
