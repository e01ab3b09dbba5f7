"""How many promises may be lost: what a percentile leaves."""

from typing import Final

STEP: Final = 0.1
"""What a lost and a kept promise move the balance by, together."""
_ROUNDING: Final = 1e-9


class ErrorBudget:
    """A balance of kept and lost promises: below 0 when more are lost than the percentile allows.

    A kept one adds (100 - percentile) hundredths of STEP, a lost one takes percentile hundredths:
    where exactly so many are lost as may be, it stays where it is. It remembers about the last
    ten losses that may be, and as much kept as makes up for them.

    Args:
        percentile: Share of requests, in percent, that keep the promise.
    """

    def __init__(self, percentile: int) -> None:
        self._kept = STEP * (100 - percentile) / 100
        self._lost = STEP * percentile / 100
        self.balance = 0.0
        """From -1 to 1."""

    @property
    def is_exhausted(self) -> bool:
        """Whether more promises are lost than may be."""
        return self.balance < -_ROUNDING

    def note(self, *, is_kept: bool) -> None:
        """Count a promise."""
        change = self._kept if is_kept else -self._lost
        self.balance = min(max(self.balance + change, -1.0), 1.0)
