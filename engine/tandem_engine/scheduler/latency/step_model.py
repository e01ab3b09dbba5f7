"""The time of a step as a sum of five parts whose prices are learnt while serving.

time = base + token · max(tokens, knee) + chunk_context · Σ chunk · (start + chunk / 2)
     + decode_context · Σ context + row · (rows + scored prompt tokens)

over the rows of a step: the fixed cost of a step, the weights' share of every token, attention of
prompt chunks, reading of the decode rows' KV cache, and what every row costs. Models of this shape
that are fitted on line are MindIE's way (its two latency predictors); the terms are those by
which prefill and decode differ. The knee is that of a roofline (Williams et al., 2009): with fewer
tokens a step still has to read all weights, and is no shorter.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil, inf, sqrt
from operator import mul
from statistics import median
from typing import Final, NamedTuple

from tandem_engine.scheduler.latency.regression import FadingSamples, clip_outliers
from tandem_engine.scheduler.latency.step_load import StepLoad

HALF_LIFE: Final = 128
"""Steps after which a sample has half of its weight; the model remembers about 185 steps."""

REFIT_EVERY: Final = 32
"""Steps between two fits, once the first few were made after 4, 12 and 28 steps."""

NUM_RECENT: Final = 32
"""Steps with, and steps without prompt chunks that a new fit is tried on."""

KNEES: Final = (0, 64, 128, 192, 256, 384)
"""Tokens that the knee may be at; a fit is made for each, and the best one counts. 0: none."""

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

# How much worse the knee in force may be than another and stay: noise must not move it.
_HYSTERESIS: Final = 1.1


class Coefficients(NamedTuple):
    """The prices of the parts of a step, in seconds; none is below 0."""

    base: float
    """Of any step."""
    token: float
    """Of each token, of `StepTimeModel.knee` tokens at least."""
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


class StepPrices(NamedTuple):
    """What the model predicts by at one moment; never changes, so any thread may read it."""

    coefficients: Coefficients
    knee: int
    """Tokens below which a step is no shorter."""

    def predict(self, load: StepLoad) -> float:
        """Seconds that a step takes; never below 0, never less for more work."""
        return _seconds(self.coefficients, self.knee, load)


# One step: the shares of its five parts in the time that the start values give, the ratio of the
# measured time to it, and its tokens.
_Sample = tuple[float, float, float, float, float, float, float]
_RATIO: Final = 5


class StepTimeModel:
    """Predicts the time of a step, and learns from every step.

    All is counted relative to the start values: a sample is the ratio of measured to start time,
    its features are the shares of the five parts in the start time (they sum up to 1), and a
    coefficient says how many times more a part costs than at the start. So a long step weighs no
    more than a short one, all features are of one size, and the pull goes to the mean ratio: a
    part that was never seen is taken to be as much slower or faster as the machine is.

    - Forgetting: weights halve every HALF_LIFE steps.
    - Outliers: `clip_outliers`, among steps of the same kind (with or without prompt chunks).
    - Each knee has a fit of its own; the one in force is the best on the last steps.
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
        self.knee = KNEES[0]
        """Tokens below which a step is no shorter."""
        self._memories = [FadingSamples(len(start), pull=_PULL) for _ in KNEES]
        self._measured: list[tuple[StepLoad, float]] = []
        self._refit_at = _FIRST_REFIT
        self._plain: deque[_Sample] = deque(maxlen=NUM_RECENT)
        self._chunked: deque[_Sample] = deque(maxlen=NUM_RECENT)
        self._plain_margin = self._chunked_margin = FIRST_MARGIN
        self._plain_drift = self._chunked_drift = FIRST_MARGIN
        self._prices = StepPrices(start, self.knee)
        self.num_fits = 0
        """Fits that were taken."""
        self.num_refused = 0
        """Fits that were worse than what was in force."""

    @property
    def coefficients(self) -> Coefficients:
        """The prices in force."""
        return self._coefficients

    @property
    def prices(self) -> StepPrices:
        """All that it predicts by, as of the last fit."""
        return self._prices

    def margin(self, *, has_chunks: bool) -> float:
        """Return the factor on a prediction below which nine in ten steps stay.

        The 0.9 quantile of measured over predicted time of the last steps of this kind, from 0.5
        to 3. It follows a machine that became slower within those steps, while the coefficients
        take a few half-lives.
        """
        return self._chunked_margin if has_chunks else self._plain_margin

    def drift(self, *, has_chunks: bool) -> float:
        """Return the factor on a prediction that makes it right on average.

        The median of measured over predicted time of the last steps of this kind, within the same
        limits as the margin; the margin itself while too few were measured.
        """
        return self._chunked_drift if has_chunks else self._plain_drift

    def predict(self, load: StepLoad) -> float:
        """Seconds that a step takes; never below 0, never less for more work."""
        return _seconds(self._coefficients, self.knee, load)

    def largest_chunk(self, seconds: float, start: float, *, free: float = 0.0) -> float:
        """Tokens of one prompt's chunk that cost `seconds` when it starts at token `start`.

        The positive root x of
        chunk_context · x · (start + x / 2) + token · max(0, x − free) = seconds.

        Args:
            seconds: Time that the step has left.
            start: Tokens of the prompt that are in the cache.
            free: Tokens that the step has left up to the knee.

        Returns:
            inf when tokens cost nothing.
        """
        _, token, square, _, _ = self._coefficients
        # The price is the larger of two: the root is the smaller one of theirs.
        return min(
            _root(square, square * start + token, seconds + token * free),
            _root(square, square * start, seconds),
        )

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
        ratios = [_ratios(self._ratios, self.knee, kind) for kind in kinds]
        anchor = median([ratio for kind in ratios for ratio in kind])
        targets = [
            sample[_RATIO] * near / ratio
            for kind, measured in zip(kinds, ratios, strict=True)
            for sample, ratio, near in zip(
                kind, measured, clip_outliers(measured, anchor=anchor), strict=True
            )
        ]
        base, tokens, *others, _, counts = zip(*chain(*kinds), strict=True)
        fade = _FADE_PER_STEP ** len(targets)
        for knee, memory in zip(KNEES, self._memories, strict=True):
            memory.fade(fade)
            at_knee = [_at_knee(*each, knee) for each in zip(tokens, counts, strict=True)]
            memory.add([base, at_knee, *others], targets)
        for recent, kind in zip((self._plain, self._chunked), kinds, strict=True):
            recent.extend(kind)
        self._take_if_better(*self._best_fit())

    def _samples(self) -> tuple[list[_Sample], list[_Sample]]:
        """Return the samples since the last fit: steps without, and with prompt chunks."""
        kinds: tuple[list[_Sample], list[_Sample]] = ([], [])
        base, *prices = self._start
        token, chunk_context, decode_context, row = prices
        for load, seconds in self._measured:
            tokens = token * load.num_tokens
            chunks = chunk_context * load.chunk_context
            context = decode_context * load.decode_context
            rows = row * (load.num_rows + load.num_scored)
            scale = 1.0 / (base + tokens + chunks + context + rows)
            kinds[chunks > 0.0].append(
                (
                    base * scale,
                    tokens * scale,
                    chunks * scale,
                    context * scale,
                    rows * scale,
                    seconds * scale,
                    load.num_tokens,
                )
            )
        self._measured.clear()
        return kinds

    def _best_fit(self) -> tuple[int, Sequence[float]]:
        """The knee whose fit is best on the last steps, and that fit."""
        recent = (self._plain, self._chunked)
        least, best = inf, (self.knee, self._ratios)
        for knee, memory in zip(KNEES, self._memories, strict=True):
            fit = memory.fit(memory.mean_target)
            misfit = _error(_levelled([_ratios(fit, knee, kind) for kind in recent]))
            if knee != self.knee:
                misfit *= _HYSTERESIS
            if misfit < least:
                least, best = misfit, (knee, fit)
        return best

    def _take_if_better(self, knee: int, fit: Sequence[float]) -> None:
        kinds = (self._plain, self._chunked)
        recent = [_ratios(self._ratios, self.knee, kind) for kind in kinds]
        fitted = [_ratios(fit, knee, kind) for kind in kinds]
        if _error(fitted) > _error(recent):
            self.num_refused += 1
        else:
            self.num_fits += 1
            self.knee, self._ratios, recent = knee, fit, fitted
            self._coefficients = Coefficients(*map(mul, fit, self._start))
            self._prices = StepPrices(self._coefficients, knee)
        self._plain_margin, self._chunked_margin = [_quantile(each, _QUANTILE) for each in recent]
        self._plain_drift, self._chunked_drift = [_quantile(each, _MEDIAN) for each in recent]


def _seconds(coefficients: Coefficients, knee: int, load: StepLoad) -> float:
    base, token, chunk_context, decode_context, row = coefficients
    return (
        base
        + token * max(load.num_tokens, knee)
        + chunk_context * load.chunk_context
        + decode_context * load.decode_context
        + row * (load.num_rows + load.num_scored)
    )


def _root(square: float, linear: float, seconds: float) -> float:
    """The positive root x of square · x² / 2 + linear · x = seconds; inf: nothing costs."""
    if seconds <= 0.0:
        return 0.0
    slope = linear + sqrt(linear * linear + 2.0 * square * seconds)
    return 2.0 * seconds / slope if 0.0 < slope < inf else inf


def _levelled(kinds: Sequence[Sequence[float]]) -> list[list[float]]:
    """The same ratios around 1: the knee is a matter of a model's shape, not of its level."""
    level = median([ratio for kind in kinds for ratio in kind])
    return [[ratio / level for ratio in kind] for kind in kinds]


def _at_knee(share: float, count: float, knee: int) -> float:
    """The tokens' share of a step of `count` tokens, when it counts `knee` of them at least."""
    return share if count >= knee else share * knee / max(count, 1)


def _ratios(coefficients: Sequence[float], knee: int, samples: Iterable[_Sample]) -> list[float]:
    """Measured over predicted time of each sample."""
    c0, c1, c2, c3, c4 = coefficients
    return [
        ratio
        / (
            c0 * base
            + c1 * _at_knee(tokens, count, knee)
            + c2 * chunks
            + c3 * context
            + c4 * rows
            + _TINY
        )
        for base, tokens, chunks, context, rows, ratio, count in samples
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
