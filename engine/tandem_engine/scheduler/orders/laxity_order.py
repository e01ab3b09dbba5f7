"""The order of prompts under a TTFT target: as few misses as possible."""

from collections.abc import Callable
from math import inf
from typing import Final

from tandem_engine.scheduler.error_budget import ErrorBudget
from tandem_engine.scheduler.orders.order import Key, arrival
from tandem_engine.scheduler.sequence import Sequence

PATIENCE: Final = 50.0
"""For how long a prompt lets later ones pass it, as a multiple of the time that it takes itself."""


class LaxityOrder:
    """Orders prompts for the fewest missed targets; those that have missed theirs go last.

    Laxity = deadline − now − predicted time of the prompt. By laxity alone a long prompt goes
    before shorter ones that came earlier, and in overload every prompt is begun just too late.
    What loses the fewest deadlines is to put the longest off when not all can be kept (Moore, An n
    job, one machine sequencing algorithm for minimizing the number of late jobs, 1968). So laxity
    decides which prompts can still be in time (`latest_start`); among those a prompt goes by its
    arrival, put off by PATIENCE times its own predicted time, which bounds how long it is passed.

    A sequence that has had its first token goes first: it was preempted.

    With an error budget, late prompts go last only while the budget is exhausted; before, they keep
    their position and are late by less.
    """

    ages = True

    def __init__(
        self,
        seconds_per_token: Callable[[], float],
        ttft_s: float = inf,
        error_budget: ErrorBudget | None = None,
    ) -> None:
        """Take prices as they are learnt.

        Args:
            seconds_per_token: Returns the price of a prompt token.
            ttft_s: The target of the time to the first token, in seconds.
            error_budget: Counts kept and missed targets; None: none may be missed.
        """
        self._seconds_per_token = seconds_per_token
        self._ttft_s = ttft_s
        self._error_budget = error_budget

    def key(self, sequence: Sequence) -> Key:
        """Its arrival and its patience, then its arrival."""
        if sequence.num_output:
            return (-inf, *arrival(sequence))
        return (sequence.arrived + PATIENCE * self._length_s(sequence), *arrival(sequence))

    def latest_start(self, sequence: Sequence) -> float:
        """Return the time, on the clock of arrivals, at which its laxity is 0: then it is late."""
        if sequence.num_output or (self._error_budget and not self._error_budget.is_exhausted):
            return inf
        return sequence.arrived + self._ttft_s - self._length_s(sequence)

    def _length_s(self, sequence: Sequence) -> float:
        return self._seconds_per_token() * sequence.num_prompt
