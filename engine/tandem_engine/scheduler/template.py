"""What every batching template has in common; each one is a file of its own."""

from typing import Protocol

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.batch import Batch
from tandem_engine.scheduler.queues import Queues


class Template(Protocol):
    """Fills a step from the queues: the one call that the scheduling loop makes."""

    def fill(self, batch: Batch, queues: Queues, schedule: ScheduleConfig) -> None:
        """Take sequences into `batch` until nothing more fits."""


def decode_running(batch: Batch, queues: Queues, limit: int) -> None:
    """Take the next token of the decoding sequences, oldest first, up to `limit` rows.

    There are more of them than `limit` only after it was lowered while they ran. Then those
    that had to wait longest go first, so that all of them move on, in turns.
    """
    decoding = [sequence for sequence in queues.running if sequence.is_decoding]
    if len(decoding) > limit:
        decoding.sort(key=lambda sequence: -sequence.num_skipped)
    for sequence in decoding:
        if batch.num_rows >= limit:
            sequence.num_skipped += 1
        # A sequence further up may just have taken this one's blocks.
        elif queues.is_running(sequence) and batch.decode(sequence):
            sequence.num_skipped = 0
