"""When decode rows need their next tokens."""

from collections.abc import Sequence
from math import inf
from typing import Final

LARGEST_GAP: Final = 4.0
"""TPOT between two tokens at most, however much a row has saved: what a reader sees as a halt."""

SMALLEST_GAP: Final = 0.75
"""TPOT between two tokens at least, however late a row is: it catches up a quarter of a token with
each one, and does not keep all prompts out meanwhile."""

LATE_SHARE: Final = 0.35
"""Share of the decode rows that one step may make late.

A row that has just got its first token has saved nothing, so the earliest deadline of many rows is
always about one TPOT ahead, and what the older ones saved would never be spent. A late row makes up
for it afterwards; the promise is a mean. In a simulation of two machines (lognormal prompts and
answers, TTFT 2 s, TPOT 50 ms at P90) shares from 0.25 to 0.5 carried 3 % to 16 % more requests than
0 does, and 0.7 fewer again.
"""

AIM: Final = 0.99
"""Share of the promised TPOT that rows are paced by: with all of it, what one slow step costs at
the end of an answer would break the promise."""


def next_due(first_token_at: float, num_output: int, last_token_at: float, tpot_s: float) -> float:
    """When the next token of a row should be there, in seconds on the caller's clock.

    The promise is a mean over the request: token k + 1 is due at first_token_at + k · AIM · TPOT,
    so a row that ran ahead may spend what it saved, and one that fell behind has to catch up. Both
    within limits, counted from its last token: LARGEST_GAP and SMALLEST_GAP. Without the lower one
    a single row that was preempted for seconds would leave no time for prompts until its end.

    Args:
        first_token_at: When it got its first token.
        num_output: Tokens that it has got, the first one included; 1 or more.
        last_token_at: When it got the latest of them.
        tpot_s: The promise, in seconds a token.
    """
    # Once a row and step: comparisons cost a third of min(max(…)).
    on_average = first_token_at + num_output * (AIM * tpot_s)
    latest = last_token_at + LARGEST_GAP * tpot_s
    if on_average > latest:
        return latest
    earliest = last_token_at + SMALLEST_GAP * tpot_s
    return on_average if on_average > earliest else earliest  # noqa: FURB136 - see above


def slack(dues: Sequence[float], now: float) -> float:
    """Seconds until the decode rows need their next tokens, but for the earliest LATE_SHARE.

    Args:
        dues: `next_due` of each decode row; with none there is no hurry, and the slack is inf.
        now: Seconds on the same clock.
    """
    if not dues:
        return inf
    return sorted(dues)[int(LATE_SHARE * len(dues))] - now
