"""Steps that were slow for a reason of their own: a pause of the machine, another process."""

from collections.abc import Sequence
from statistics import median
from typing import Final

_FEWEST: Final = 3
_ANY_SPREAD: Final = 3.0
"""Fewer ratios than three have no spread; they may be this many times larger or smaller."""
_SPREADS: Final = 6.0
"""Median distances from the median that are normal: four standard deviations of a bell curve."""
_LEAST_REACH: Final = 0.2
"""Share of the median that is normal however close together the others lie."""


def clip_outliers(ratios: Sequence[float], *, anchor: float) -> list[float]:
    """Bring ratios of measured to predicted time that stand far out back to the edge of the rest.

    The edges are those of the ratios themselves (their median and the median distance from it). So
    one slow step among normal ones counts as a slightly slow one, while steps that are all slower
    by the same factor (a slower machine) are taken as they are.

    Args:
        ratios: Above 0; steps of one kind, measured close together.
        anchor: Their expected median, used where they are too few to tell.
    """
    if len(ratios) < _FEWEST:
        low, high = anchor / _ANY_SPREAD, anchor * _ANY_SPREAD
    else:
        middle = median(ratios)
        distance = median([abs(each - middle) for each in ratios])
        reach = max(_SPREADS * distance, _LEAST_REACH * middle)
        low, high = middle - reach, middle + reach
    return [min(max(each, low), high) for each in ratios]
