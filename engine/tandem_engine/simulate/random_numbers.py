"""The interface of a seeded generator, so that the simulator needs none of its own."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class RandomNumbers(Protocol):
    """Random numbers; `random.Random` implements it."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """Return a number whose logarithm is normal."""
        ...

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Return a normal number."""
        ...

    def expovariate(self, lambd: float) -> float:
        """Return an exponential number with mean 1 / `lambd`."""
        ...

    def choice(self, seq: Sequence[T], /) -> T:
        """Return one of `seq`."""
        ...
