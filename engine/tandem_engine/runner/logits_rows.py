"""The logits of a step that each sequence is sampled from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tandem_engine.device.host_memory import ints_to_device
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.rows import Rows
from tandem_engine.sampling.row import Row


@dataclass(slots=True)
class LogitsRows:
    """Positions of a step that are sampled from, those of one row together."""

    at: list[int] = field(default_factory=list)
    """Index of each position among the rows of the logits."""
    positions: list[Row] = field(default_factory=list)
    """The row as it is at each position: with the drafts before it."""
    rows: list[Row] = field(default_factory=list)
    """The rows themselves."""
    counts: list[int] = field(default_factory=list)
    """Number of positions of each row."""

    def add(self, row: Row, *, at: int, drafts: Sequence[int] = ()) -> None:
        """Sample `row` from the logits `at`, and behind each of its drafts."""
        self.at += range(at, at + 1 + len(drafts))
        self.positions.append(row)
        self.positions += [row.with_output(drafts[: known + 1]) for known in range(len(drafts))]
        self.rows.append(row)
        self.counts.append(1 + len(drafts))

    def logits_of(self, logits: Tensor) -> Tensor:
        """The logits of the positions: `logits` itself when these are all, in order."""
        if self.at == list(range(logits.shape[0])):
            return logits
        return logits.index_select(0, ints_to_device(self.at, logits.device))


def split(batch: FlatBatch, rows: Rows) -> tuple[LogitsRows, LogitsRows]:
    """The rows of beams, and those of all other sequences.

    A row that completes the prompt of several choices creates them; each is sampled
    from the logits of that one row.
    """
    beams, others = LogitsRows(), LogitsRows()
    at = 0
    for row in batch.yielding:
        drafts = batch.drafts.get(row.sequence_id, ())
        if row.sampling.use_beam_search:
            beams.add(row, at=at)
        else:
            others.add(row, at=at, drafts=drafts)
        for choice in rows.fork(row):
            others.add(choice, at=at)
        at += 1 + len(drafts)
    return beams, others
