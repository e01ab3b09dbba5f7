"""Figures of ranks of tp beside one rank."""

from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

MEMORY_GOAL: Final = 200 * 10**6
"""Bytes that a rank may hold beside its share of weights and KV."""
_QUARTERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """A load on both sides; times are medians of steps, in milliseconds."""

    load: str
    goal: float
    one_rank_ms: float
    ranks_ms: float
    ratios: tuple[float, ...]
    """Time of one rank over that of several, round by round: 1 is as fast, more is faster."""
    quiet_ratio: float
    """The same of each side's fastest tenth of steps: those that nothing else disturbed."""

    @property
    def ratio(self) -> float:
        """The median."""
        return median(self.ratios)

    @property
    def is_met(self) -> bool:
        """True where the goal is."""
        return self.ratio >= self.goal

    @property
    def quarters(self) -> tuple[float, float]:
        """The lower and the upper quarter."""
        if len(self.ratios) == 1:
            return self.ratio, self.ratio
        low, _, high = quantiles(self.ratios, n=_QUARTERS)
        return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """Memory of one rank, in bytes."""

    rank: int
    held: dict[str, int]
    share: int
    """Of weights and KV cache."""
    base: int
    """Held before the model is loaded: Python and torch."""

    @property
    def own(self) -> int:
        """Bytes of it and of the ranks' shared memory: all but the pages of files."""
        return self.held["RssAnon"] + self.held["RssShmem"]

    @property
    def beside(self) -> int:
        """Those of its own that are no share."""
        return self.own - self.share

    @property
    def private(self) -> int:
        """Pages that no other process has, and that are no share: the price of a further rank."""
        return self.held["Private"] - self.share

    @property
    def is_met(self) -> bool:
        """True where the goal is, by private pages."""
        return self.private <= MEMORY_GOAL
