"""The lengths and batch sizes that a replica's memory holds: pure arithmetic.

    memory ≥ process + weights + largest step + KV cache + host blocks

maxSeqLen decides on the KV cache, which has to hold one sequence of that length, and, where prompts
are not cut, on the largest step; maxBatchSize on the rows of that step. What the manifest gives is
kept, or refused with the sum. What it leaves open is the model's limit, and MindIE's default, where
the memory holds them, and else:

- maxBatchSize: as many rows as a quarter of what the weights leave holds, since a row costs a few
  copies of its logits even while it is empty;
- maxSeqLen: the longest of which one sequence fits into the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.rewrites import rewrite, with_batch_size
from tandem_engine.kvcache.capacity import GIB, MAX_SCORED_ROWS, StepCost, in_gib, more_memory
from tandem_engine.kvcache.layout import CacheLayout

_ROWS_SHARE: Final = 4
_LOGIT_BYTES: Final = 4
_MARGIN: Final = 0.1
"""Of the measured largest step, for what was not measured: it is extrapolated from small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """The memory of a replica's rank, and what is in it before the first step; in bytes."""

    rank: int = 0
    num_ranks: int = 1
    """Ranks of the replica; each has an equal share of its memory."""
    total: int
    process: int
    """Held before the weights were read."""
    weights: int
    host: int = 0
    """Blocks for sequences that are swapped out: cpuMemSize."""
    kv_cache: int | None = None
    """npuMemSize; None: all that is left."""
    is_on_card: bool = False
    """True: it is a card's, which the manifest cannot raise."""

    @property
    def left(self) -> int:
        """Bytes left for steps and KV cache."""
        return self.total - self.process - self.weights - self.host

    @property
    def owner(self) -> str:
        """The one whose memory it is, at the beginning of a sentence."""
        return "This replica" if self.num_ranks == 1 else f"Rank {self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The settings to fit; None leaves the choice to the replica."""

    schedule: ScheduleConfig
    """The replica may lower its maxBatchSize unless the manifest gives it."""
    model_limit: int
    """Tokens that the model is made for."""
    max_seq_len: int | None
    """None: the replica's to choose."""
    max_input_token_len: int | None
    vocab_size: int
    """Columns of a row's logits on the rank that samples; 0 on others, which keep none."""
    layout: CacheLayout

    @property
    def may_lower_rows(self) -> bool:
        """True if maxBatchSize is MindIE's default."""
        return "max_batch_size" not in self.schedule.model_fields_set

    @property
    def shortest(self) -> int:
        """The least maxSeqLen worth a choice: a block, or a token more than the longest prompt."""
        return min(
            max(self.layout.block_size, (self.max_input_token_len or 0) + 1), self.model_limit
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The settings that fit."""

    max_seq_len: int
    max_batch_size: int
    step: int
    """Bytes of the largest step."""
    step_tokens: int
    """Tokens of it."""


def fit(required: Requirements, memory: ReplicaMemory, cost: StepCost) -> Fit:
    """Return the largest maxSeqLen and maxBatchSize that fit, where `required` leaves them open.

    Raises:
        ConfigError: a given value does not fit, or nothing does; the text has the sum, part by
            part, and what would do.
    """
    sizes = _Sizes(required, memory, cost)
    length, rows = required.max_seq_len or required.model_limit, required.schedule.max_batch_size
    if not sizes.fits(length, rows):
        length, rows = _largest_fit(sizes)
    return _fitted(sizes, length, rows)


def fit_together(parts: Sequence[tuple[Requirements, ReplicaMemory, StepCost]]) -> list[Fit]:
    """Return what `fit` does for each rank, with the lengths and batch sizes of the tightest one.

    Less always fits, so what is the least of all fits everywhere.

    Raises:
        ConfigError: As `fit`, for the first rank of which it is true.
    """
    fits = [fit(*part) for part in parts]
    length = min(fit.max_seq_len for fit in fits)
    rows = min(fit.max_batch_size for fit in fits)
    return [_fitted(_Sizes(*part), length, rows) for part in parts]


def _fitted(sizes: "_Sizes", length: int, rows: int) -> Fit:
    return Fit(
        max_seq_len=length,
        max_batch_size=rows,
        step=sizes.step(length, rows),
        step_tokens=sizes.step_tokens(length, rows),
    )


def _largest_fit(sizes: "_Sizes") -> tuple[int, int]:
    required, memory = sizes.required, sizes.memory
    rows = required.schedule.max_batch_size
    if required.may_lower_rows:
        affordable = memory.left // _ROWS_SHARE // max(1, sizes.cost.per_row)
        rows = max(1, min(rows, affordable))
    length = required.max_seq_len or sizes.longest(rows) or required.shortest
    if required.may_lower_rows:
        rows = sizes.max_rows(length) or rows
    if not sizes.fits(length, rows):
        raise ConfigError(sizes.refusal(length, rows))
    return length, rows


class _Sizes:
    """Sizes of steps and sequences."""

    def __init__(self, required: Requirements, memory: ReplicaMemory, cost: StepCost) -> None:
        self.required = required
        self.memory = memory
        self.cost = cost

    def step_tokens(self, length: int, rows: int) -> int:
        """Tokens of the largest step."""
        schedule, _ = rewrite(
            with_batch_size(self.required.schedule, rows),
            max_seq_len=length,
            max_input_token_len=self.required.max_input_token_len or length - 1,
        )
        return schedule.largest_step

    def step(self, length: int, rows: int) -> int:
        """Bytes of the largest step."""
        measured = self.cost.of(
            num_tokens=self.step_tokens(length, rows), num_rows=rows, context=length
        )
        # With async scheduling the logits of two steps are there at once.
        next_step = rows * self.required.vocab_size * _LOGIT_BYTES
        measured += next_step * self.required.schedule.async_scheduling_enable
        measured += self._scored_rows(length, rows) * self.required.vocab_size * _LOGIT_BYTES
        return int(measured * (1 + _MARGIN))

    def _scored_rows(self, length: int, rows: int) -> int:
        """Rows of logits that are there at once where tokens of a prompt are scored."""
        return min(MAX_SCORED_ROWS, self.step_tokens(length, rows))

    def sequence(self, length: int) -> int:
        """Bytes of the KV blocks of one sequence."""
        layout = self.required.layout
        return layout.num_blocks(length) * layout.block_bytes

    def fits(self, length: int, rows: int) -> bool:
        """Return True if the largest step and one sequence fit."""
        kv_cache = self.memory.kv_cache
        sequence = self.sequence(length)
        if kv_cache is not None and sequence > kv_cache:
            return False
        return self.step(length, rows) + max(sequence, kv_cache or 0) <= self.memory.left

    def longest(self, rows: int) -> int | None:
        """The longest sequence that fits, in whole blocks; None: not even the shortest."""
        required = self.required
        size = required.layout.block_size
        most = required.model_limit // size
        least = required.layout.num_blocks(required.shortest)
        blocks = _largest(lambda count: self.fits(count * size, rows), least, most)
        return None if blocks is None else blocks * size

    def max_rows(self, length: int) -> int | None:
        """The most rows that fit; None: not even one."""
        return _largest(
            lambda rows: self.fits(length, rows), 1, self.required.schedule.max_batch_size
        )

    def refusal(self, length: int, rows: int) -> str:
        """The sum, part by part, and what would do."""
        needed = self.memory.total - self.memory.left + self.step(length, rows)
        needed += max(self.sequence(length), self.memory.kv_cache or 0)
        parts = " + ".join(self._parts(length, rows))
        ways = ", or ".join(self._ways_out(length, rows, needed))
        return (
            f"{self.memory.owner}'s memory of {in_gib(self.memory.total)} does not hold {parts} "
            f"= {in_gib(needed)}; {ways}."
        )

    def _parts(self, length: int, rows: int) -> Iterator[str]:
        memory = self.memory
        yield f"process {in_gib(memory.process)}"
        yield f"weights {in_gib(memory.weights)}"
        tokens = self.step_tokens(length, rows)
        yield f"largest step {in_gib(self.step(length, rows))} ({tokens} tokens in {rows} rows)"
        sequence = self.sequence(length)
        if memory.kv_cache is None or sequence > memory.kv_cache:
            yield f"KV cache of one sequence of maxSeqLen {length} {in_gib(sequence)}"
        else:
            yield f"KV cache of npuMemSize {in_gib(memory.kv_cache)}"
        if memory.host:
            yield f"cpuMemSize {in_gib(memory.host)}"

    def _ways_out(self, length: int, rows: int, needed: int) -> Iterator[str]:
        kv_cache, num_ranks = self.memory.kv_cache, self.memory.num_ranks
        if self.memory.is_on_card:
            memory = more_memory(is_on_card=True)
        else:
            memory = f"set resources.memory to {-(-needed * num_ranks * 10 // GIB) / 10:g}Gi"
        if kv_cache is None:
            yield memory
        elif self.sequence(length) > kv_cache:
            size = -(-self.sequence(length) * num_ranks // GIB)
            yield f"set npuMemSize to {size}" + (
                "" if self.memory.is_on_card else f", with {memory[4:]}"
            )
        else:
            yield f"lower npuMemSize, or {memory}"
        shorter = self.longest(rows)
        if shorter is not None and shorter < length:
            yield f"lower maxSeqLen to {shorter}"
        fewer = self.max_rows(length)
        if fewer is not None and fewer < rows:
            yield f"lower maxBatchSize to {fewer}"
        if self.memory.host:
            yield "lower cpuMemSize"


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest number from `least` to `most` that fits, where less always does, too."""
    if least > most or not fits(least):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least
