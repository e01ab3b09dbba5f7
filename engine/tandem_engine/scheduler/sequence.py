"""The scheduler's state of a sequence: counts, block ids, and the keys of its full blocks.

There are as many of these as requests, so what one takes in memory counts: no list or dict of its
own that is mostly empty.
"""

from array import array
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final, TypeAlias

from tandem_engine.api.output import FinishReason
from tandem_engine.kvcache.keys import KEY_BYTES, block_keys, last_key, next_key
from tandem_engine.scheduler.group import Group


class State(IntEnum):
    """The queue of a sequence."""

    WAITING = 0
    """It holds no blocks."""
    RUNNING = 1
    """It holds blocks, and may be in the next step."""
    SWAPPED = 2
    """Its computed tokens are in host blocks."""
    ENDED = 3
    """It is over; rows of open steps that refer to it are skipped."""


# Read once a row and step, where reading an attribute of an enumeration is slow.
RUNNING: Final = State.RUNNING

# The largest number that Python keeps as one object.
_MAX_UNTIL_CHECK: Final = 256

# Four bytes: no vocabulary has more tokens than that holds.
_ID: Final = "i"


@dataclass(slots=True, kw_only=True, eq=False)
class _EveryStep:
    """The fields that every step reads of every row.

    A step of a thousand rows is as slow as the memory is. Python lays the fields of a base class
    side by side, before all others: that is two cache lines of a row, and not five.
    """

    sequence_id: str
    num_prompt: int
    num_tokens: int
    num_computed: int = 0
    tokens_until_check: int = 0
    """Tokens that can be appended one by one and change nothing but counts: none of them fills a
    block, needs one, or is the last. It may be too low. Small, since Python keeps small numbers
    ready and allocates others."""
    stop_token_ids: frozenset[int]
    state: State = State.WAITING
    is_plain: bool = True
    """True if it is independent: no beam, and no pending fork waits for its prompt."""
    table: tuple[int, ...] = ()
    """Its KV blocks. A step keeps the tuple that it was made with."""
    tail: "array[int] | None" = None
    """Known tokens behind the last full block, from its first blocks on; None: it keeps no keys."""
    first_token_at: float = inf
    """Seconds; when it got its first token."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence(_EveryStep):
    """One sequence of a request on its way through the scheduler.

    0 ──────────── num_computed ──────────── num_tokens ─────────── max_total
      in the cache                known, to compute      not yet sampled
    """

    group: "SequenceGroup"
    block_size: int
    """Tokens in a KV block."""
    max_total: int
    min_total: int
    """A stop id ends it only beyond this many tokens."""
    arrived: float
    """Seconds; its key in every order that ends in first come, first served."""
    number: int
    """Breaks ties between equal arrivals: sequences are numbered as they come."""
    priority: int
    is_prefilling: bool = False
    """True if it runs and its prompt is not done."""
    rows: int = 1
    """Rows of a step that it takes or keeps: those of sequences that wait for its prompt too."""
    capacity: int = 0
    """Tokens that the table has slots for."""
    writes_shared: bool = False
    """True if the next token it writes falls into a block that others may read."""
    host_table: tuple[int, ...] = ()
    """Host blocks of the computed tokens while it is swapped out."""
    keys: bytes = b""
    """Keys of its full blocks of known tokens, concatenated."""
    keeps_keys: bool = False
    """True if others may find its blocks, and it may find theirs."""
    num_sealed: int = 0
    """Full blocks that others may find."""
    next_seal: float = inf
    """Computed tokens at which there is one more; inf: it keeps no keys."""
    num_hit: int = 0
    """Tokens that the prefix cache had when it was admitted last."""
    num_skipped: int = 0
    """Steps in a row that had no row for its next token."""
    num_preempted: int = 0
    """Times that it lost its blocks."""
    was_preempted_for_starved: bool = False
    """True if it lost its blocks to a request that had waited too long for its first token."""
    is_long: bool = False
    """True if its prompt counts as a long one (longPrefillTokenThreshold)."""
    num_beyond: int = 0
    """Tokens computed for it that are not in the cache (any more), less those in the cache that
    were computed for others."""
    num_in_flight: int = 0
    """Steps that are computed at the moment and have it as a row; counted where there are several
    pipeline stages."""
    served_at: float = 0.0
    """Seconds; when its prompt was last in a step, or when it arrived."""

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that are not in the cache yet."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """True if just the newest token is missing from the cache: one token a step.

        A prompt of which one token is left counts too: it costs a step the same.
        """
        return self.num_tokens - self.num_computed == 1

    @property
    def num_attained(self) -> int:
        """Tokens computed for it, those that were computed twice included."""
        return self.num_computed + self.num_beyond

    @num_attained.setter
    def num_attained(self, attained: int) -> None:
        self.num_beyond = attained - self.num_computed

    def hold(self, num_computed: int) -> None:
        """Set the count of its cached tokens where none was computed for it."""
        self.num_beyond += self.num_computed - num_computed
        self.num_computed = num_computed

    def beams_or_self(self) -> "list[Sequence]":
        """Return the sequences that must be in the same step: all beams of its request."""
        beams = self.group.beams
        return list(beams.values()) if beams else [self]

    @property
    def is_short(self) -> bool:
        """True if it lacks a block, or has to copy one, to compute its known tokens."""
        return self.num_tokens > self.capacity or self.writes_shared

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return self.num_tokens - self.num_prompt

    @property
    def is_scored(self) -> bool:
        """True while its prompt is computed for log-probabilities: all of it, then."""
        return self.group.request.sampling.prompt_logprobs is not None and not self.num_output

    @property
    def is_fresh(self) -> bool:
        """True if it never had a token computed."""
        return self.num_attained == 0

    def count_token(self) -> None:
        """Count one token more, to be checked; `StepUpdater.commit_token` takes its id."""
        self.num_tokens += 1
        self.tokens_until_check = 0

    def begin_tail(self) -> None:
        """Keep the tokens behind the full blocks from now on, if it keeps keys."""
        if self.keeps_keys and self.tail is None:
            prompt = self.group.request.prompt_token_ids
            self.tail = array(_ID, prompt[self.num_keys * self.block_size :])

    def close_block(self) -> None:
        """Append the key of the block that its known tokens have just filled, if any."""
        tail = self.tail
        if tail is not None and len(tail) == self.block_size:
            parent = last_key(self.keys, salt=self.group.request.cache_salt)
            self.keys += next_key(parent, tail)
            del tail[:]

    def reason_to_end(self, token_id: int) -> FinishReason | None:
        """Return the reason to end with its newest token; None: it goes on."""
        if token_id in self.stop_token_ids and self.num_tokens > self.min_total:
            return "stop"
        return "length" if self.num_tokens >= self.max_total else None

    def count_until_check(self) -> None:
        """Compute `tokens_until_check`."""
        known = self.num_tokens
        left = min(self.max_total, self.next_seal, self.capacity + 1) - known
        self.tokens_until_check = max(0, min(int(left) - 1, _MAX_UNTIL_CHECK))

    def key(self, block: int) -> bytes:
        """The key of its full block number `block`."""
        return self.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]

    @property
    def num_keys(self) -> int:
        """Full blocks of known tokens."""
        return len(self.keys) // KEY_BYTES

    def forget_cache(self) -> tuple[int, ...]:
        """Drop all that was computed, to be computed again; return the blocks to give back."""
        blocks, self.table = self.table, ()
        self.hold(0)
        self.capacity = self.num_sealed = 0
        self.writes_shared = False
        return blocks


SequenceGroup: TypeAlias = Group[Sequence]


def first_sequence(group: SequenceGroup, *, block_size: int, keeps_keys: bool) -> Sequence:
    """Return the sequence that computes the prompt of a request.

    Args:
        group: The sequences of the request, of which this is the first.
        block_size: Tokens in a KV block.
        keeps_keys: True when others may find its blocks, and it theirs.
    """
    request = group.request
    prompt = request.prompt_token_ids
    # One number object for the three that are mostly equal.
    length = len(prompt)
    min_tokens = request.sampling.min_tokens
    sequence = Sequence(
        sequence_id=request.sequences[0],
        group=group,
        block_size=block_size,
        num_prompt=length,
        num_tokens=length,
        max_total=length + request.max_new_tokens,
        min_total=length + min_tokens if min_tokens else length,
        stop_token_ids=request.stop_token_ids,
        arrived=request.arrived,
        number=group.number,
        priority=request.priority,
        is_plain=len(request.sequences) == 1 and group.search is None,
        rows=len(request.sequences),
        served_at=request.arrived,
    )
    if keeps_keys:
        sequence.keys = block_keys(prompt, block_size, salt=request.cache_salt)
        sequence.keeps_keys = True
    return sequence


def fork_of(sequence: Sequence, sequence_id: str) -> Sequence:
    """Return a fork: another sequence of its group with the same known tokens, none computed."""
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
        is_plain=group.search is None,
        keys=sequence.keys,
        keeps_keys=sequence.keeps_keys,
        tail=None if sequence.tail is None else sequence.tail[:],
        num_beyond=sequence.num_attained,
    )
