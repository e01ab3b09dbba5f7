"""How long a step takes, as a sum of five parts whose prices are learnt while serving.

time = base + token · tokens + chunk_context · Σ chunk · (start + chunk / 2)
     + decode_context · Σ context + row · rows

over the rows of a step: the fixed cost of a step, the weights' share of every token, attention of
prompt chunks, reading of the decode rows' KV cache, and what every row costs. Models of this shape
that are fitted on line are MindIE's way (its two latency predictors); the terms are those that
engines.md 6.3 arrives at.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import ceil, inf, sqrt
from operator import mul
from statistics import median
from typing import Final, NamedTuple

from tandem_engine.scheduler.latency.load import StepLoad
from tandem_engine.scheduler.latency.outliers import tamed
from tandem_engine.scheduler.latency.regression import FadingSamples

HALF_LIFE: Final = 128
"""Steps after which a sample has half of its weight; the model remembers about 185 steps."""

REFIT_EVERY: Final = 32
"""Steps between two fits, once the first few were made after 4, 12 and 28 steps."""

NUM_RECENT: Final = 32
"""Steps with, and steps without prompt chunks that a new fit is tried on."""

FIRST_MARGIN: Final = 1.2
"""The margin while too few steps were measured to know one."""

_FIRST_REFIT: Final = 4
_FADE_PER_STEP: Final = 0.5 ** (1.0 / HALF_LIFE)
_ENOUGH: Final = 8
_QUANTILE: Final = 0.9
_MEDIAN: Final = 0.5
_LEAST_MARGIN: Final = 0.5
_LARGEST_MARGIN: Final = 3.0

# The pull towards the expected ratio, in samples. With 10 % noise, 0.01 stands for the guess
# "each part is off from the expected by a factor of about 2" (variance 0.1² over variance 1²).
_PULL: Final = 0.01
_TINY: Final = 1e-12


class Coefficients(NamedTuple):
    """The prices of the parts of a step, in seconds; none is below 0."""

    base: float
    """Of any step."""
    token: float
    """Of each token."""
    chunk_context: float
    """Of each pair of prompt tokens that attend to each other."""
    decode_context: float
    """Of each cached token that a decode row reads."""
    row: float
    """Of each row."""


START: Final = Coefficients(
    base=3e-3, token=4e-5, chunk_context=1e-7, decode_context=2e-6, row=5e-5
)
"""Prices before anything was measured: about those of tandem-tiny on one CPU thread."""

# One step: the shares of its five parts in the time that the start values give, and the ratio of
# the measured time to it.
_Sample = tuple[float, float, float, float, float, float]


class StepTimeModel:
    """Predicts the time of a step, and learns from every step.

    All is counted relative to the start values: a sample is the ratio of measured to start time,
    its features are the shares of the five parts in the start time (they sum up to 1), and a
    coefficient says how many times dearer a part is than at the start. So a long step weighs no
    more than a short one, all features are of one size, and the pull goes to the mean ratio: a
    part that was never seen is taken to be as much slower or faster as the machine is.

    - Forgetting: weights halve every HALF_LIFE steps.
    - Outliers: `tamed`, among steps of the same kind (with or without prompt chunks).
    - A fit is refused when it is worse than the coefficients in force on the last steps of both
      kinds (mean of |predicted − measured| over the larger of the two, which is at most 1, so
      that here too one slow step counts for one).
    """

    def __init__(self, start: Coefficients = START) -> None:
        """Begin with `start`, whose coefficients are all above 0."""
        if min(start) <= 0.0:
            raise ValueError(f"start {start} has a price that is not above 0; give all five")
        self._start = start
        self._coefficients = start
        self._ratios: Sequence[float] = (1.0,) * len(start)
        self._memory = FadingSamples(len(start), pull=_PULL)
        self._measured: list[tuple[StepLoad, float]] = []
        self._refit_at = _FIRST_REFIT
        self._plain: deque[_Sample] = deque(maxlen=NUM_RECENT)
        self._chunked: deque[_Sample] = deque(maxlen=NUM_RECENT)
        self._plain_margin = self._chunked_margin = FIRST_MARGIN
        self._plain_drift = self._chunked_drift = FIRST_MARGIN
        self.num_fits = 0
        """Fits that were taken."""
        self.num_refused = 0
        """Fits that were worse than what was in force."""

    @property
    def coefficients(self) -> Coefficients:
        """The prices in force."""
        return self._coefficients

    def margin(self, *, has_chunks: bool) -> float:
        """By what to multiply a prediction so that nine in ten steps take no longer.

        The 0.9 quantile of measured over predicted time of the last steps of this kind, from 0.5
        to 3. It follows a machine that became slower within those steps, while the coefficients
        take a few half-lives.
        """
        return self._chunked_margin if has_chunks else self._plain_margin

    def drift(self, *, has_chunks: bool) -> float:
        """By what to multiply a prediction so that it is right on average.

        The median of measured over predicted time of the last steps of this kind, within the same
        limits as the margin; the margin itself while too few were measured.
        """
        return self._chunked_drift if has_chunks else self._plain_drift

    def predict(self, load: StepLoad) -> float:
        """Seconds that a step takes; never below 0, never less for more work."""
        base, token, chunk_context, decode_context, row = self._coefficients
        return (
            base
            + token * load.num_tokens
            + chunk_context * load.chunk_context
            + decode_context * load.decode_context
            + row * load.num_rows
        )

    def largest_chunk(self, seconds: float, start: float) -> float:
        """Tokens of one prompt's chunk that cost `seconds` when it starts at token `start`.

        The positive root x of chunk_context · x · (start + x / 2) + token · x = seconds; inf when
        tokens cost nothing.
        """
        if seconds <= 0.0:
            return 0.0
        _, token, square, _, _ = self._coefficients
        linear = token + square * start
        slope = linear + sqrt(linear * linear + 2.0 * square * seconds)
        return 2.0 * seconds / slope if 0.0 < slope < inf else inf

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from one step; a time that is not above 0 and finite says nothing."""
        if not 0.0 < seconds < inf:
            return
        self._measured.append((load, seconds))
        if len(self._measured) >= self._refit_at:
            self._refit()
            self._refit_at = min(2 * self._refit_at, REFIT_EVERY)

    def _refit(self) -> None:
        kinds = self._samples()
        ratios = [_ratios(self._ratios, kind) for kind in kinds]
        anchor = median([ratio for kind in ratios for ratio in kind])
        samples = [
            (*sample[:-1], sample[-1] * near / ratio)
            for kind, measured in zip(kinds, ratios, strict=True)
            for sample, ratio, near in zip(
                kind, measured, tamed(measured, anchor=anchor), strict=True
            )
        ]
        *features, targets = zip(*samples, strict=True)
        self._memory.fade(_FADE_PER_STEP ** len(samples))
        self._memory.add(features, targets)
        for recent, kind in zip((self._plain, self._chunked), kinds, strict=True):
            recent.extend(kind)
        self._take_if_better(self._memory.fit(self._memory.mean_target))

    def _samples(self) -> tuple[list[_Sample], list[_Sample]]:
        """What was measured since the last fit: steps without, and with prompt chunks."""
        kinds: tuple[list[_Sample], list[_Sample]] = ([], [])
        base, *prices = self._start
        token, chunk_context, decode_context, row = prices
        for load, seconds in self._measured:
            tokens = token * load.num_tokens
            chunks = chunk_context * load.chunk_context
            context = decode_context * load.decode_context
            rows = row * load.num_rows
            scale = 1.0 / (base + tokens + chunks + context + rows)
            kinds[chunks > 0.0].append(
                (
                    base * scale,
                    tokens * scale,
                    chunks * scale,
                    context * scale,
                    rows * scale,
                    seconds * scale,
                )
            )
        self._measured.clear()
        return kinds

    def _take_if_better(self, fit: Sequence[float]) -> None:
        recent = [_ratios(self._ratios, kind) for kind in (self._plain, self._chunked)]
        fitted = [_ratios(fit, kind) for kind in (self._plain, self._chunked)]
        if _error(fitted) > _error(recent):
            self.num_refused += 1
        else:
            self.num_fits += 1
            self._ratios, recent = fit, fitted
            self._coefficients = Coefficients(*map(mul, fit, self._start))
        self._plain_margin, self._chunked_margin = [_quantile(each, _QUANTILE) for each in recent]
        self._plain_drift, self._chunked_drift = [_quantile(each, _MEDIAN) for each in recent]


def _ratios(coefficients: Sequence[float], samples: Iterable[_Sample]) -> list[float]:
    """Measured over predicted time of each sample."""
    c0, c1, c2, c3, c4 = coefficients
    return [
        ratio / (c0 * base + c1 * tokens + c2 * chunks + c3 * context + c4 * rows + _TINY)
        for base, tokens, chunks, context, rows, ratio in samples
    ]


def _error(kinds: Iterable[Sequence[float]]) -> float:
    """Sum over all steps of the distance of prediction and measurement, over the larger."""
    return sum(
        [1.0 - (ratio if ratio < 1.0 else 1.0 / ratio) for ratios in kinds for ratio in ratios]
    )


def _quantile(ratios: Sequence[float], share: float) -> float:
    if len(ratios) < _ENOUGH:
        return FIRST_MARGIN
    quantile = sorted(ratios)[ceil(share * len(ratios)) - 1]
    return min(max(quantile, _LEAST_MARGIN), _LARGEST_MARGIN)
