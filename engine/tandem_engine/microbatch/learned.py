"""Prices of computation and communication, learnt from the steps of rank 0; pure."""

from collections.abc import Sequence
from typing import Final

from tandem_engine.microbatch.overlap import StepOverlap, StepShape
from tandem_engine.scheduler.latency.regression import FadingSamples

FIRST_FIT: Final = 8
"""Steps before the first prices."""
REFIT_EVERY: Final = 32

_HALF_LIFE: Final = 128
_FADE: Final = 0.5 ** (1.0 / _HALF_LIFE)
_PULL: Final = 0.01
# Any positive guess does: what is learnt is how many times more a part costs.
_COMPUTE_START: Final = (1e-3, 4e-5, 1e-8, 1e-7)
_LINK_START: Final = (5e-5, 1e-9)


class _Sum:
    """A time as a sum of parts, each a count times a price that is learnt."""

    def __init__(self, start: Sequence[float]) -> None:
        self._start = start
        self._samples = FadingSamples(len(start), pull=_PULL)
        self.prices: Sequence[float] = start

    def add(self, counts: Sequence[float], seconds: float) -> None:
        guessed = [price * count for price, count in zip(self._start, counts, strict=True)]
        total = sum(guessed)
        if total <= 0.0:
            return
        self._samples.fade(_FADE)
        self._samples.add([[part / total] for part in guessed], [seconds / total])

    def fit(self) -> None:
        ratios = self._samples.fit(self._samples.mean_target)
        self.prices = [price * ratio for price, ratio in zip(self._start, ratios, strict=True)]


class LearnedPrices:
    """Learns from every step, and fits now and then.

    Communication is learnt from whole steps: between halves that take turns it waits for them.
    """

    def __init__(self) -> None:
        self._compute = _Sum(_COMPUTE_START)
        self._link = _Sum(_LINK_START)
        self._num_steps = 0
        self._fit_at = FIRST_FIT
        self.is_known = False
        """True once there was a fit."""

    def add(self, shape: StepShape, measured: StepOverlap) -> bool:
        """Learn from one step; return True when prices have changed."""
        counts = (shape.num_passes, shape.num_tokens, shape.num_pairs, shape.num_context)
        self._compute.add(counts, measured.compute_s)
        if shape.num_passes == 1 and shape.num_collectives:
            self._link.add((shape.num_collectives, shape.num_bytes), measured.communication_s)
        self._num_steps += 1
        if self._num_steps < self._fit_at:
            return False
        self._compute.fit()
        self._link.fit()
        self._fit_at = self._num_steps + REFIT_EVERY
        self.is_known = True
        return True

    @property
    def compute(self) -> Sequence[float]:
        """Seconds of a pass, a token, a pair of prompt tokens, a token of a decode's context."""
        return self._compute.prices

    @property
    def link(self) -> Sequence[float]:
        """Seconds of a collective, and of a byte."""
        return self._link.prices

    def whole_seconds(self, shape: StepShape) -> float:
        """Return what a step takes that is not cut; `shape` may be of one that was."""
        compute = (1.0, shape.num_tokens, shape.num_pairs, shape.num_context)
        link = (shape.num_collectives / shape.num_passes, shape.num_bytes)
        return sum(
            price * count
            for price, count in zip((*self.compute, *self.link), (*compute, *link), strict=True)
        )
