"""The error budget of a latency target: the misses that its percentile allows."""

from typing import Final

STEP: Final = 0.1
"""Sum of the changes of the balance by one missed and one kept target."""
_ROUNDING: Final = 1e-9


class ErrorBudget:
    """A balance of kept and missed targets: below 0 when more are missed than may be.

    A kept one adds (100 - percentile) hundredths of STEP, a missed one takes percentile hundredths:
    where exactly as many are missed as may be, it stays constant. It remembers about the last ten
    misses that may be, and as many kept as make up for them.

    Args:
        percentile: Share of requests, in percent, that keep the target.
    """

    def __init__(self, percentile: int) -> None:
        self._kept = STEP * (100 - percentile) / 100
        self._lost = STEP * percentile / 100
        self.balance = 0.0
        """From -1 to 1."""

    @property
    def is_exhausted(self) -> bool:
        """True if more targets are missed than may be."""
        return self.balance < -_ROUNDING

    def note(self, *, is_kept: bool) -> None:
        """Count a target that was kept or missed."""
        change = self._kept if is_kept else -self._lost
        self.balance = min(max(self.balance + change, -1.0), 1.0)
