"""The rows of the step being built, with the sums that budgets and strategies read."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.sequence import Sequence


class BatchLimits(NamedTuple):
    """maxBatchSize and maxPrefillBatchSize as they are in force for one step."""

    max_batch_size: int
    """Sequences that may run at the same time."""
    max_prefill_batch_size: int
    """Sequences that may work on their prompt in this step; 0: none."""


@dataclass(slots=True, eq=False)
class StepRows:
    """Rows and their tokens. Every change goes through a method, which keeps the sums."""

    decodes: dict[Sequence, int] = field(default_factory=dict)
    """Rows that go on with their output → their tokens."""
    prefills: dict[Sequence, int] = field(default_factory=dict)
    """Rows that work on their prompt → their tokens."""
    num_tokens: int = 0
    """Tokens of the step."""
    decode_context: int = 0
    """Known tokens of the decode rows: what they read from the cache."""
    prefill_tokens: int = 0
    """Prompt tokens of the step."""
    prefill_rows: int = 0
    """Rows that prompts of the step stand for."""

    @property
    def is_empty(self) -> bool:
        """True while the step has no row."""
        return not self.decodes and not self.prefills

    def __len__(self) -> int:
        return len(self.decodes) + len(self.prefills)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decodes
        yield from self.prefills

    def add_decode(self, sequence: Sequence, num_tokens: int) -> None:
        """Add a row that goes on with its output."""
        self.decodes[sequence] = num_tokens
        self.num_tokens += num_tokens
        self.decode_context += sequence.num_tokens

    def add_decodes(self, sequences: Collection[Sequence]) -> None:
        """Add rows of one token each; none is there before."""
        self.decodes = dict.fromkeys(sequences, 1)
        self.num_tokens += len(sequences)
        self.decode_context += sum([sequence.num_tokens for sequence in sequences])

    def add_prefill(self, sequence: Sequence, num_tokens: int) -> None:
        """Add a row that works on its prompt."""
        self.prefills[sequence] = num_tokens
        self.num_tokens += num_tokens
        self.prefill_tokens += num_tokens
        self.prefill_rows += sequence.rows

    def remove(self, sequence: Sequence) -> None:
        """Take a row out again, if it is there."""
        self.remove_decode(sequence)
        chunk = self.prefills.pop(sequence, 0)
        if chunk:
            self.num_tokens -= chunk
            self.prefill_tokens -= chunk
            self.prefill_rows -= sequence.rows

    def remove_decode(self, sequence: Sequence) -> None:
        """Take a decode row out again, if it is there."""
        tokens = self.decodes.pop(sequence, 0)
        if tokens:
            self.num_tokens -= tokens
            self.decode_context -= sequence.num_tokens

    def load(self) -> StepLoad:
        """Return the work of the step in the terms of `StepTimeModel`."""
        chunks = ((chunk, row.num_computed) for row, chunk in self.prefills.items())
        return StepLoad(
            num_tokens=self.num_tokens,
            num_rows=len(self),
            chunk_context=sum(chunk * (start + chunk / 2) for chunk, start in chunks),
            decode_context=self.decode_context,
            num_scored=sum(chunk for row, chunk in self.prefills.items() if row.is_scored),
        )
