"""Histograms that cost the engine's thread a third of a microsecond a value.

prometheus_client's own take a lock and walk the buckets: 2.5 µs a value, which at one value a
token is more than half a millisecond of every step with 256 decodes. One thread writes these, so
they need no lock; the Prometheus objects are made at a scrape.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

MAX_PAST_EDGES: Final = 16
"""Past edges whose counts are kept, so that they go on where they were when one comes back."""


class Histogram:
    """Values counted by bucket, for one writing thread and readers on any.

    A reader may see a value in its bucket that is not in the sum yet; the count always agrees
    with the buckets.

    Args:
        name: Without the prefix that all series have.
        text: Description for `# HELP`.
        bounds: Upper bounds of the buckets, inclusive, ascending; one for the rest is added.
    """

    __slots__ = (
        "_base",
        "_bounds",
        "_counts",
        "_edge",
        "_name",
        "_past",
        "_sum",
        "_table",
        "_text",
    )

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._base = tuple(bounds)
        self._edge: float | None = None
        # Past edges → values of the bucket of the base that were at or below them.
        self._past: dict[float, int] = {}
        self._sum = 0.0
        self._take(self._base, [0] * (len(self._base) + 1))

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count values, of which many are equal: the tokens of a step come at one moment."""
        for value, times in Counter(values).items():
            self._counts[bisect_left(self._bounds, value)] += times
            self._sum += value * times

    def set_edge(self, edge: float | None) -> None:
        """Let a bucket end exactly at `edge` from now on, beside those of the base.

        Cumulative counts never fall. Those of the base stay as they are. What came before
        is not known to be below a new edge, and counts as above it, so the count there begins as
        that of the next lower bound; a past edge goes on from its own values.

        Args:
            edge: An upper bound, inclusive; None, or one of the base: no further one.
        """
        edge = None if edge in self._base else edge
        if edge == self._edge:
            return
        counts = list(self._counts)
        if self._edge is not None:
            at = bisect_left(self._base, self._edge)
            below = self._past[self._edge] = counts.pop(at)
            counts[at] += below
        bounds = list(self._base)
        if edge is not None:
            at = bisect_left(self._base, edge)
            below = self._past.pop(edge, 0)
            bounds.insert(at, edge)
            counts[at] -= below
            counts.insert(at, below)
        while len(self._past) > MAX_PAST_EDGES:
            del self._past[next(iter(self._past))]
        self._edge = edge
        self._take(tuple(bounds), counts)

    def family(self, model_name: str, **labels: str) -> HistogramMetricFamily:
        """Return the counts in Prometheus' form: cumulative, with these labels."""
        family = HistogramMetricFamily(
            f"tandem_{self._name}", self._text, labels=["model_name", *labels]
        )
        self.add_to(family, model_name, *labels.values())
        return family

    def add_to(self, family: HistogramMetricFamily, *labels: str) -> None:
        """Put the counts into the family of a histogram of the same name, under other labels."""
        bounds, counts = self._table
        buckets = list(zip(bounds, accumulate(list(counts)), strict=True))
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)

    def _take(self, bounds: tuple[float, ...], counts: list[int]) -> None:
        self._bounds, self._counts = bounds, counts
        # In one assignment: a reader gets labels and counts that belong together.
        self._table = ([*map(floatToGoString, bounds), "+Inf"], counts)
