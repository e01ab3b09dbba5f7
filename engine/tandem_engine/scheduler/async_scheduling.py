"""Async scheduling: the condition under which a step is scheduled while another is computed."""

from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.records.records import OpenStep


def only_tokens_are_open(newest: OpenStep, queues: Queues) -> bool:
    """Return True if all is known of the newest step but its tokens.

    Each row gets one then, and no next step depends on which. Otherwise the next step has to wait:
    beams go on with the tokens of one another, choices are forked, and swapped sequences come back
    when others have gone.
    """
    if not newest.rows or queues.num_beam_groups or queues.swapped:
        return False
    return all(row.is_plain for row in newest.rows)
