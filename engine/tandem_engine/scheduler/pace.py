"""The pace of decode rows, as a share of the TPOT target that missed targets adjust.

Prompts and decode rows share the time of every step, and so the two targets compete: rows that
are paced a little faster than the target survive a slow step at the end of their answers, and the
prompts pay for it with their TTFT. How much is right depends on the load and on the machine. So
the pace is a balance: every prompt that comes too late makes it slower, every answer that was too
slow makes it faster. It settles where both targets are missed in proportion to what their
percentiles allow.

With a TPOT alone nothing else makes the pace slower but the answers that were kept: each by as much
as lets it rest where so many are lost as the percentile allows, and prompts have the rest.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Final, Protocol

from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.error_budget import ErrorBudget
from tandem_engine.scheduler.subsample import subsample

LARGEST_GAP: Final = 3.0
"""TPOT until the next tokens at most, however much rows have saved: more looks like a stall."""

SMALLEST_GAP: Final = 0.5
"""TPOT until the next tokens at least, however late rows are: they catch up half a token with each
one, and do not keep all prompts out meanwhile."""

FASTEST: Final = 0.9
"""Share of the TPOT target that rows are paced by when they alone are late."""

SLOWEST: Final = 0.99
"""Share that they are paced by when prompts alone are late. With all of the TPOT, one slow step
at the end of an answer would miss the target."""

LATE_SHARE: Final = 0.35
"""Share of the decode rows that one step may make late at the slowest pace; none at the fastest.

A row that has just got its first token has saved nothing, so the earliest deadline of many rows is
always about one TPOT ahead, and what the older ones saved would never be spent. A late row makes up
for it afterwards; the target is a mean.
"""

START: Final = 0.7
"""The leniency before any target was missed: rows are paced by 0.963 of the TPOT."""

STEP: Final = 0.05
"""Change by one missed target, where both targets have the same percentile."""

RETURN: Final = 0.01
"""Share of the way back to START that one kept target goes."""


_NONE_AHEAD: Final[Mapping[Any, float]] = {}


class PacedRow(Protocol):
    """The fields of a row that its deadline depends on."""

    first_token_at: float
    """Seconds; inf: it has no token yet."""
    num_prompt: int
    num_tokens: int


class Pace:
    """Deadlines of decode rows under one pair of targets."""

    def __init__(self, slo: Slo) -> None:
        """Begin in the middle.

        Args:
            slo: The latency targets.
        """
        self._ttft_s = inf if slo.ttft_s is None else slo.ttft_s
        self._tpot_s = inf if slo.tpot_s is None else slo.tpot_s
        self._ttft_step, self._tpot_step = _steps(slo)
        self._kept_step = _kept_step(slo)
        self.error_budget = _error_budget(slo)
        """Of TTFTs, where there is no TPOT target; None: there is one, or none at all."""
        self.leniency = START
        """0: rows at the fastest pace, none late; 1: at the slowest, with as many late as may be.
        """

    @property
    def share(self) -> float:
        """Share of the TPOT target that rows are paced by."""
        return FASTEST + (SLOWEST - FASTEST) * self.leniency

    def note_first_token(self, ttft_s: float) -> None:
        """Learn from a prompt that was answered after `ttft_s`."""
        if self.error_budget is not None:
            self.error_budget.note(is_kept=ttft_s <= self._ttft_s)
        elif ttft_s > self._ttft_s:
            self.leniency = min(1.0, self.leniency + self._ttft_step)

    def note_end(self, tpot_s: float) -> None:
        """Learn from an answer with `tpot_s` a token."""
        if tpot_s > self._tpot_s:
            self.leniency = max(0.0, self.leniency - self._tpot_step)
        elif self._kept_step is not None:
            self.leniency = min(1.0, self.leniency + self._kept_step)
        else:
            self.leniency += RETURN * (START - self.leniency)

    def slack(
        self, rows: Collection[PacedRow], now: float, ahead: Mapping[Any, float] = _NONE_AHEAD
    ) -> float:
        """Seconds until decode rows need their next tokens, but for those that may be late.

        The target is a mean over the request: token k + 1 is due at first_token_at + k · pace, so
        a row that ran ahead may spend what it saved, and one that fell behind has to catch up.
        Both within limits: LARGEST_GAP and SMALLEST_GAP. Without the lower one a row that was
        preempted for seconds would leave no time for prompts until its end.

        Args:
            rows: The decode rows of a step; of very many a sample counts.
            now: Seconds, when all of them have their latest token.
            ahead: Rows → tokens that the step is expected to give them beside the next one:
                drafts that are right. The last of them is due so much later.

        Returns:
            inf when no row decodes, or there is no target.
        """
        if not rows or self._tpot_s == inf:
            return inf
        pace_s = self.share * self._tpot_s
        dues = []
        for row in subsample(rows):
            first, count = row.first_token_at, row.num_tokens - row.num_prompt
            # In an async step: the first token is still computed, and there by `now`.
            if first == inf and count:
                first = now
            if ahead:
                first += pace_s * ahead.get(row, 0.0)
            dues.append(first + pace_s * count)
        dues.sort()
        due = dues[int(LATE_SHARE * self.leniency * len(dues))]
        return min(max(due - now, SMALLEST_GAP * self._tpot_s), LARGEST_GAP * self._tpot_s)


def _steps(slo: Slo) -> tuple[float, float]:
    """Return what a missed TTFT adds, and a missed TPOT takes; rarer allowed ones count for more.

    With P90 of TTFT and P99 of TPOT they are 2 · STEP · 1/11 and 2 · STEP · 10/11.
    """
    if slo.ttft is None or slo.tpot is None:
        return STEP, STEP
    ttft_share, tpot_share = 100 - slo.ttft.percentile, 100 - slo.tpot.percentile
    both = ttft_share + tpot_share
    return 2.0 * STEP * tpot_share / both, 2.0 * STEP * ttft_share / both


def _kept_step(slo: Slo) -> float | None:
    """Return what a kept TPOT adds where it is the only target; None: it goes back to START.

    At P90 one missed answer in ten takes what the nine others add.
    """
    if slo.tpot is None or slo.ttft is not None:
        return None
    percentile = slo.tpot.percentile
    return STEP * (100 - percentile) / percentile


def _error_budget(slo: Slo) -> ErrorBudget | None:
    if slo.ttft is None or slo.tpot is not None:
        return None
    return ErrorBudget(slo.ttft.percentile)
