"""templateType Mix: SplitFuse. Decodes go first, prompt chunks fill the token budget.

The idea is Dynamic SplitFuse of DeepSpeed-FastGen (Holmes et al., 2024) and chunked prefill of
Sarathi-Serve (Agrawal et al., 2024); the parameters are MindIE's.
"""

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.batch import Batch
from tandem_engine.scheduler.gate import SplitGate
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.scheduler.template import decode_running


class MixTemplate:
    """Every step does about the same work: splitChunkTokens, decodes and chunks together."""

    def __init__(self) -> None:
        self._gate = SplitGate()

    def fill(self, batch: Batch, queues: Queues, schedule: ScheduleConfig) -> None:
        """Take all decodes, then chunks of prompts begun, then of prompts that wait."""
        decode_running(batch, queues, min(schedule.max_batch_size, _budget(schedule)))
        self._continue_prefills(batch, queues, schedule)
        self._start_prefills(batch, queues, schedule)

    def _continue_prefills(self, batch: Batch, queues: Queues, schedule: ScheduleConfig) -> None:
        for sequence in queues.running:
            if not sequence.is_decoding and queues.is_running(sequence):
                batch.prefill(sequence, self._chunk(batch, sequence, schedule))

    def _start_prefills(self, batch: Batch, queues: Queues, schedule: ScheduleConfig) -> None:
        while (sequence := queues.next_waiting) is not None:
            chunk = self._chunk(batch, sequence, schedule)
            if chunk <= 0 or not batch.admits(sequence):
                return
            batch.prefill(queues.admit_next(), chunk)

    def _chunk(self, batch: Batch, sequence: Sequence, schedule: ScheduleConfig) -> int:
        """Tokens of its prompt that `sequence` may compute in this step."""
        if self._gate.is_open(schedule, batch.num_rows):
            return min(sequence.num_uncomputed, _budget(schedule) - batch.total_tokens)
        return _whole(sequence, schedule.max_prefill_tokens - batch.prefill_tokens, schedule)


def _budget(schedule: ScheduleConfig) -> int:
    return schedule.split_fuse.split_chunk_tokens


def _whole(sequence: Sequence, room: int, schedule: ScheduleConfig) -> int:
    """All that is left of the prompt, if it fits; one that never would is cut to the room."""
    if sequence.num_uncomputed <= room:
        return sequence.num_uncomputed
    return room if sequence.num_uncomputed > schedule.max_prefill_tokens else 0
