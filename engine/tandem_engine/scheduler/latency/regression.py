"""Least squares for a handful of features: outliers clipped, samples that fade, none below 0.

Small on purpose: with five features plain Python solves the normal equations in some ten
microseconds, and the core needs no array library.
"""

from collections.abc import Sequence
from operator import mul, truediv
from statistics import median
from typing import Final

Matrix = list[list[float]]

# Every round of the active set brings a smaller error, so few are needed; the limit is for
# rounding that makes two sets look alike.
_ROUNDS_PER_COEFFICIENT: Final = 4
_FLAT: Final = 1e-12

_FEWEST: Final = 3
_ANY_SPREAD: Final = 3.0
"""Fewer ratios than three have no spread; they may be this many times larger or smaller."""
_SPREADS: Final = 6.0
"""Median distances from the median that are normal: four standard deviations of a bell curve."""
_LEAST_REACH: Final = 0.2
"""Share of the median that is normal however close together the others lie."""


class FadingSamples:
    """The sums that a least-squares fit needs, in which old samples weigh less and less.

    Exponential forgetting: `fade` multiplies the weight of all that was added before. A pull
    towards a given point (a ridge) keeps coefficients that no sample speaks about where they are
    expected to be, and the equations solvable.
    """

    def __init__(self, num_features: int, *, pull: float) -> None:
        """Start with no samples.

        Args:
            num_features: Coefficients to find.
            pull: Weight of the pull on each coefficient; a sample in which a feature is 1 has 1.
        """
        self._pull = pull
        self._gram: Matrix = [[0.0] * num_features for _ in range(num_features)]
        self._moment = [0.0] * num_features
        self._weight = 0.0
        self._total = 0.0

    @property
    def mean_target(self) -> float:
        """Weighted mean of the targets; 1 before the first sample."""
        return self._total / self._weight if self._weight else 1.0

    def fade(self, factor: float) -> None:
        """Multiply the weight of all samples so far by `factor`, from 0 to 1."""
        self._gram = [[factor * each for each in row] for row in self._gram]
        self._moment = [factor * each for each in self._moment]
        self._weight *= factor
        self._total *= factor

    def add(self, columns: Sequence[Sequence[float]], targets: Sequence[float]) -> None:
        """Add samples of weight 1, given as one column for each feature."""
        for i, column in enumerate(columns):
            self._moment[i] += sum(map(mul, column, targets))
            for j in range(i + 1):
                product = sum(map(mul, column, columns[j]))
                self._gram[i][j] += product
                if i != j:
                    self._gram[j][i] += product
        self._weight += len(targets)
        self._total += sum(targets)

    def fit(self, expected: float) -> list[float]:
        """The coefficients ≥ 0 of least squared error, each pulled a little towards `expected`."""
        pull = self._pull
        gram = [
            [each + pull if i == j else each for j, each in enumerate(row)]
            for i, row in enumerate(self._gram)
        ]
        return least_squares(gram, [each + pull * expected for each in self._moment])


def least_squares(gram: Matrix, moment: Sequence[float]) -> list[float]:
    """The x ≥ 0 that makes xᵀ·gram·x − 2·moment·x least, by active sets.

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23; it begins with all
    coefficients free, since mostly none has to be held at 0.

    Args:
        gram: Symmetric and positive definite.
        moment: As long as a row of `gram`.
    """
    solution = [0.0] * len(moment)
    free = list(range(len(moment)))
    for _ in range(_ROUNDS_PER_COEFFICIENT * len(moment)):
        solution, free = _descend(gram, moment, solution, free)
        held = [i for i in range(len(moment)) if i not in free]
        gain, best = max(((_slope(gram, moment, solution, i), i) for i in held), default=(0.0, -1))
        if gain <= _FLAT * (1.0 + abs(moment[best])):
            break
        free = sorted([*free, best])
    return solution


def _slope(gram: Matrix, moment: Sequence[float], solution: Sequence[float], index: int) -> float:
    """Return the rate at which the error falls when a coefficient grows."""
    pulled: float = sum(map(mul, gram[index], solution))
    return moment[index] - pulled


def _descend(
    gram: Matrix, moment: Sequence[float], solution: list[float], free: list[int]
) -> tuple[list[float], list[int]]:
    """Go to the least error over the free coefficients, holding those at 0 that would fall below.

    `solution` is ≥ 0 before and after; each turn holds one coefficient more, so it ends.
    """
    while free:
        goal = _solve(gram, moment, free)
        blocked = {i: _share(solution[i], goal[i]) for i in free if goal[i] <= 0.0}
        if not blocked:
            return goal, free
        share = min(blocked.values())
        solution = [x + share * (y - x) for x, y in zip(solution, goal, strict=True)]
        free = [i for i in free if i not in blocked or blocked[i] > share]
        solution = [x if i in free else 0.0 for i, x in enumerate(solution)]
    return [0.0] * len(moment), free


def _share(here: float, goal: float) -> float:
    """Return the share of the way from `here` ≥ 0 to `goal` ≤ 0 before 0 is reached."""
    return here / (here - goal) if here > 0.0 else 0.0


def _solve(gram: Matrix, moment: Sequence[float], free: Sequence[int]) -> list[float]:
    """The least error over the free coefficients, the others 0.

    gram = L·D·Lᵀ over the free ones (Cholesky without square roots), then forward and back.
    """
    lower: Matrix = []
    diagonal: list[float] = []
    forward: list[float] = []
    for index in free:
        entries: list[float] = []
        for other, row in zip(free, lower, strict=False):
            entries.append(gram[index][other] - sum(map(mul, entries, row)))
        scaled = list(map(truediv, entries, diagonal))
        diagonal.append(gram[index][index] - sum(map(mul, scaled, entries)))
        forward.append(moment[index] - sum(map(mul, scaled, forward)))
        lower.append(scaled)
    solution = [0.0] * len(moment)
    values = list(map(truediv, forward, diagonal))
    for i in reversed(range(len(free))):
        solution[free[i]] = values[i]
        for j, entry in enumerate(lower[i]):
            values[j] -= entry * values[i]
    return solution


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
