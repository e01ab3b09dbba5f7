"""Samples of a service over time, and a test for growth. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

QUANTITIES: Final = ("memory MiB", "file descriptors", "threads", "KV blocks held")
"""In the order of the plot; of the replica's process."""

_TOLERANCE: Final[Mapping[str, float]] = {
    "memory MiB": 0.05,
    "file descriptors": 0.10,
    "threads": 0.10,
    "KV blocks held": 0.50,
}
"""Shares by which the last quarter may lie above the second: what load alone moves."""
_SLACK: Final[Mapping[str, float]] = {
    "memory MiB": 10.0,
    "file descriptors": 8.0,
    "threads": 2.0,
    "KV blocks held": 16.0,
}
"""Absolute amounts, for figures that are small."""
_MIN_SAMPLES: Final = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """The quantities at one moment."""

    at_s: float
    """Since the load began."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity, early and late."""

    name: str
    early: float
    """Median of the second quarter: caches have filled by then."""
    late: float
    """Median of the last quarter."""

    @property
    def is_flat(self) -> bool:
        """True unless it has grown by more than load alone moves it."""
        allowed = max(_TOLERANCE[self.name] * self.early, _SLACK[self.name])
        return self.late - self.early <= allowed


def growth_of(samples: Sequence[Sample]) -> list[Growth]:
    """Compare the second quarter of the samples with the last one, for each quantity.

    Raises:
        ValueError: fewer than eight samples, of which a quarter says nothing.
    """
    count = len(samples)
    if count < _MIN_SAMPLES:
        raise ValueError(f"{count} samples are too few; at least {_MIN_SAMPLES} are needed")
    second, last = samples[count // 4 : count // 2], samples[-(count // 4) :]
    return [Growth(name, _median(second, name), _median(last, name)) for name in QUANTITIES]


def _median(samples: Sequence[Sample], name: str) -> float:
    return median(sample.values[name] for sample in samples)
