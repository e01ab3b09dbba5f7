"""Arrival times of requests. Pure: the same seed gives the same times."""

import math
from collections.abc import Iterator
from itertools import repeat
from random import Random


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Yield times in seconds from 0, `rate` a second on average, gaps exponential, without end.

    An infinite rate gives 0 always: all at once.
    """
    if math.isinf(rate):
        return repeat(0.0)
    return _poisson(rate, Random(seed))  # noqa: S311  # load, not secrets


def _poisson(rate: float, rng: Random) -> Iterator[float]:
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now
