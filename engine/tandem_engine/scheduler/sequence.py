"""What the scheduler knows of a sequence: counts, block ids, and the keys of its full blocks."""

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

from tandem_engine.api.output import FinishReason
from tandem_engine.api.step import SampledToken
from tandem_engine.kvcache.keys import KEY_BYTES, block_keys, last_key, next_key

if TYPE_CHECKING:
    from tandem_engine.scheduler.group import Group


class State(IntEnum):
    """Where a sequence is."""

    WAITING = 0
    """It holds no blocks."""
    RUNNING = 1
    """It holds blocks, and may be in the next step."""
    SWAPPED = 2
    """Its computed tokens stand in host blocks."""
    ENDED = 3
    """It is over; whoever still has it passes over it."""


# Asked for once a row and step, where reading an attribute of an enumeration is dear.
RUNNING: Final = State.RUNNING


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One sequence of a request on its way through the scheduler.

    0 ──────────── num_computed ──────────── num_tokens ─────────── max_total
      in the cache                known, to compute      not yet sampled
    """

    sequence_id: str
    group: "Group"
    block_size: int
    """Tokens in a KV block."""
    num_prompt: int
    num_tokens: int
    num_computed: int = 0
    max_total: int
    min_total: int
    """A stop id ends it only beyond this many tokens."""
    stop_token_ids: frozenset[int]
    arrived: float
    """Seconds; where it stands in every order that ends in first come, first served."""
    number: int
    """Breaks ties between equal arrivals: sequences are numbered as they come."""
    priority: int
    is_prefilling: bool = False
    """Whether it runs and its prompt is not done."""
    rows: int = 1
    """Rows of a step that it takes or keeps: those of sequences that wait for its prompt too."""
    state: State = State.WAITING
    table: list[int] = field(default_factory=list)
    """Its KV blocks."""
    capacity: int = 0
    """Tokens that the table has slots for."""
    writes_shared: bool = False
    """Whether the next token it writes falls into a block that others may read."""
    host_table: list[int] = field(default_factory=list)
    """Host blocks of the computed tokens while it is swapped out."""
    keys: bytes = b""
    """Keys of its full blocks of known tokens, concatenated."""
    tail: list[int] | None = None
    """Known tokens behind the last full block; None: nobody asks for keys."""
    num_sealed: int = 0
    """Full blocks that others may find."""
    next_seal: float = inf
    """Computed tokens at which there is one more; inf: nobody asks for keys."""
    num_hit: int = 0
    """Tokens that the prefix cache had when it was admitted last."""
    num_skipped: int = 0
    """Steps in a row that had no place for its next token."""
    num_preempted: int = 0
    """How often it lost its blocks."""
    was_claimed: bool = False
    """Whether it lost its blocks to a request that had waited too long for its first token."""
    is_long: bool = False
    """Whether its prompt counts as a long one (longPrefillTokenThreshold)."""
    num_attained: int = 0
    """Tokens computed for it, those that were computed twice included."""
    served_at: float = 0.0
    """Seconds; when its prompt was last in a step, or when it arrived."""
    first_token_at: float = inf
    """Seconds; when it got its first token."""

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that are not in the cache yet."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether just the newest token is missing from the cache: one token a step.

        A prompt of which one token is left counts too: it costs a step the same.
        """
        return self.num_tokens - self.num_computed == 1

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return self.num_tokens - self.num_prompt

    @property
    def is_fresh(self) -> bool:
        """Whether it never had a token computed."""
        return self.num_attained == 0

    def append(self, token_id: int) -> FinishReason | None:
        """Note one sampled token; return why the sequence ends with it, if it does."""
        self.num_tokens += 1
        tail = self.tail
        if tail is not None:
            tail.append(token_id)
            if len(tail) == self.block_size:
                parent = last_key(self.keys, salt=self.group.request.cache_salt)
                self.keys += next_key(parent, tail)
                tail.clear()
        if token_id in self.stop_token_ids and self.num_tokens > self.min_total:
            return "stop"
        if self.num_tokens >= self.max_total:
            return "length"
        return None

    def append_all(
        self, tokens: List[SampledToken]
    ) -> tuple[FinishReason | None, List[SampledToken]]:
        """Note several tokens; return why and with which of them the sequence ends."""
        for number, token in enumerate(tokens, 1):
            reason = self.append(token.token_id)
            if reason is not None:
                return reason, tokens[:number]
        return None, tokens

    def key(self, block: int) -> bytes:
        """The key of its full block number `block`."""
        return self.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]

    @property
    def num_keys(self) -> int:
        """Full blocks of known tokens."""
        return len(self.keys) // KEY_BYTES

    def forget_cache(self) -> list[int]:
        """Drop all that was computed, to be computed again; return the blocks to give back."""
        blocks, self.table = self.table, []
        self.capacity = self.num_computed = self.num_sealed = 0
        self.writes_shared = False
        return blocks


def first_sequence(group: "Group", *, block_size: int, keeps_keys: bool) -> Sequence:
    """The sequence that computes the prompt of a request.

    Args:
        group: The sequences of the request, of which this is the first.
        block_size: Tokens in a KV block.
        keeps_keys: Whether its blocks may be found by others, and it may find theirs.
    """
    request = group.request
    prompt = request.prompt_token_ids
    sequence = Sequence(
        sequence_id=request.sequences[0],
        group=group,
        block_size=block_size,
        num_prompt=len(prompt),
        num_tokens=len(prompt),
        max_total=len(prompt) + request.max_new_tokens,
        min_total=len(prompt) + request.sampling.min_tokens,
        stop_token_ids=request.stop_token_ids,
        arrived=request.arrived,
        number=group.number,
        priority=request.priority,
        rows=len(request.sequences),
        served_at=request.arrived,
    )
    if keeps_keys:
        sequence.keys = block_keys(prompt, block_size, salt=request.cache_salt)
        sequence.tail = list(prompt[sequence.num_keys * block_size :])
    return sequence


def fork_of(sequence: Sequence, sequence_id: str) -> Sequence:
    """Another sequence of its group with the same known tokens, and nothing computed."""
    group = sequence.group
    return Sequence(
        sequence_id=sequence_id,
        group=group,
        block_size=sequence.block_size,
        num_prompt=sequence.num_prompt,
        num_tokens=sequence.num_tokens,
        max_total=sequence.max_total,
        min_total=sequence.min_total,
        stop_token_ids=sequence.stop_token_ids,
        arrived=sequence.arrived,
        number=group.number + group.request.sequences.index(sequence_id),
        priority=sequence.priority,
        keys=sequence.keys,
        tail=None if sequence.tail is None else list(sequence.tail),
        num_attained=sequence.num_attained,
    )
