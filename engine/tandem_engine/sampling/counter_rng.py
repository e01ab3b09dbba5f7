"""A counter-based random number generator: a number for (seed, position), without state.

A counter-based generator makes a request's tokens independent of what else is in the batch, of
pre-emption and of the number of steps: position k always gets the same number.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_TO_UNIT: Final = 2.0**-53


def uniform(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each pair of a seed and a position."""
    bits = _mix(_mix(seeds) + (positions + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def derive_seed(seed: int, index: int) -> int:
    """The seed of choice `index`; choice 0 keeps the seed itself."""
    if index == 0:
        return seed & 0xFFFFFFFFFFFFFFFF
    base = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    return int(_mix(base + np.array([index], dtype=np.uint64) * _GOLDEN)[0])


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser; arithmetic wraps at 64 bits."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
