"""The start of SplitFuse's cutting: MindIE's splitStartBatchSize and splitStartType."""

from tandem_engine.api.config import ScheduleConfig


class SplitStart:
    """Decides if prompts are cut, by the number of sequences already in the batch.

    MindIE up to 2.3 documents the two parameters but not what exactly it counts; here it is
    the rows of the step being built: all decodes, and the prompts taken so far.
    """

    def __init__(self) -> None:
        self._latched = False

    def is_reached(self, schedule: ScheduleConfig, num_rows: int) -> bool:
        """Return True if a prompt that joins `num_rows` other rows is cut."""
        reached = num_rows >= schedule.split_start_rows
        if schedule.split_fuse.split_start_type:
            return reached
        self._latched = self._latched or reached
        return self._latched
