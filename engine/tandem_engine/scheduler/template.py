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
    """Take the next token of up to `limit` decoding sequences, oldest first."""
    for sequence in queues.running:
        if batch.num_rows >= limit:
            return
        # A sequence further up may just have taken this one's blocks.
        if sequence.is_decoding and queues.is_running(sequence):
            batch.decode(sequence)
