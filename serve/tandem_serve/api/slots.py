"""Slots of a replica: the sequences that it takes, by MindIE's maxLinkNum; pure data.

MindIE's maxLinkNum = N means: N requests are processed at once, 2N more may wait, and request
number 3N + 1 is refused.
"""

from typing import Final

SLOTS_PER_LINK: Final = 3
"""One slot in process and two in the queue."""


def max_in_flight(max_link_num: int) -> int:
    """Sequences that may be in process and waiting together."""
    return SLOTS_PER_LINK * max_link_num
