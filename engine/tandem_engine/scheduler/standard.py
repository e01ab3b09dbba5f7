"""templateType Standard: a step is all prefill, with whole prompts, or all decode."""

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.batch import Batch
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.template import decode_running


class StandardTemplate:
    """Prefill first: whoever waits and fits starts before the running ones go on."""

    def fill(self, batch: Batch, queues: Queues, schedule: ScheduleConfig) -> None:
        """Take prompts; when there is none that fits, take decodes."""
        self._continue_prefills(batch, queues)
        self._start_prefills(batch, queues, schedule)
        if batch.num_rows == 0:
            decode_running(batch, queues, schedule.max_batch_size)

    def _continue_prefills(self, batch: Batch, queues: Queues) -> None:
        """Finish prompts that a Mix template left half done: the setting is live."""
        for sequence in queues.running:
            if not sequence.is_decoding:
                batch.prefill(sequence, sequence.num_uncomputed)

    def _start_prefills(self, batch: Batch, queues: Queues, schedule: ScheduleConfig) -> None:
        while (sequence := queues.next_waiting) is not None:
            if not self._fits(batch, sequence, schedule) or not batch.admits(sequence):
                return
            batch.prefill(queues.admit_next(), sequence.num_tokens)

    def _fits(self, batch: Batch, sequence: Sequence, schedule: ScheduleConfig) -> bool:
        """maxPrefillTokens closes the batch; a prompt longer than that runs alone."""
        if batch.num_rows == 0:
            return True
        return batch.prefill_tokens + sequence.num_tokens <= schedule.max_prefill_tokens
