"""Histograms: what Prometheus gets, and that a live change of an edge loses no count."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tandem_engine.async_engine.histogram import MAX_PAST_EDGES, Histogram

BASE = (0.5, 1.0, 2.5, 10.0)
EDGES = st.sampled_from([None, 0.1, 0.75, 0.8, 1.0, 1.5, 2.0, 2.25, 20.0])
# Values on edges and between them.
VALUES = st.sampled_from(
    [0.05, 0.1, 0.5, 0.7, 0.75, 0.8, 1.0, 1.2, 1.5, 1.75, 2.0, 2.5, 15.0, 30.0]
)


def cumulative(histogram: Histogram) -> dict[str, float]:
    """Bound of each bucket, as Prometheus writes it → values at or below it."""
    samples = histogram.family("tiny").samples
    return {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}


def total(histogram: Histogram) -> tuple[float, float]:
    samples = {s.name: s.value for s in histogram.family("tiny").samples}
    return samples["tandem_x_count"], samples["tandem_x_sum"]


def filled(*values: float, edge: float | None = None) -> Histogram:
    histogram = Histogram("x", "X.", BASE)
    histogram.set_edge(edge)
    for value in values:
        histogram.observe(value)
    return histogram


@given(st.lists(st.floats(min_value=-1.0, max_value=12.0), max_size=50), EDGES)
def test_counts_are_those_that_prometheus_defines(values: list[float], edge: float | None) -> None:
    histogram = filled(*values, edge=edge)

    told = cumulative(histogram)
    bounds = sorted({*BASE, *([] if edge is None else [edge])})
    assert [float(label) for label in told] == [*bounds, float("inf")]
    for bound, count in zip(bounds, told.values(), strict=False):
        assert count == sum(value <= bound for value in values)
    count, added = total(histogram)
    assert count == len(values)
    assert added == pytest.approx(sum(values))


def test_a_value_on_the_edge_is_at_or_below_it() -> None:
    assert cumulative(filled(0.7999, 0.8, 0.8001, edge=0.8))["0.8"] == 2


def test_an_edge_of_the_base_adds_no_bucket() -> None:
    assert list(cumulative(filled(edge=2.5))) == ["0.5", "1.0", "2.5", "10.0", "+Inf"]


def test_earlier_values_count_as_above_a_new_edge() -> None:
    histogram = filled(0.2, 1.2, 1.9)

    histogram.set_edge(1.5)

    assert cumulative(histogram) == {"0.5": 1, "1.0": 1, "1.5": 1, "2.5": 3, "10.0": 3, "+Inf": 3}
    histogram.observe(1.2)
    assert cumulative(histogram)["1.5"] == 2


def test_an_edge_that_goes_leaves_its_values_in_the_bucket_of_the_base() -> None:
    histogram = filled(1.2, 1.2, 1.9, edge=1.5)

    histogram.set_edge(None)

    assert cumulative(histogram) == {"0.5": 0, "1.0": 0, "2.5": 3, "10.0": 3, "+Inf": 3}


def test_an_edge_that_comes_back_goes_on_from_its_own_count() -> None:
    histogram = filled(1.2, 1.9, edge=1.5)
    histogram.set_edge(2.0)
    histogram.observe(1.2)

    histogram.set_edge(1.5)

    told = cumulative(histogram)
    assert (told["1.0"], told["1.5"], told["2.5"]) == (0, 1, 3)


def test_a_scrape_during_a_change_has_labels_and_counts_of_one_moment() -> None:
    histogram = filled(1.2, edge=1.5)
    before = histogram._table

    histogram.set_edge(None)

    labels, counts = before
    assert len(labels) == len(counts) == len(BASE) + 2


def test_past_edges_are_forgotten_beyond_a_number() -> None:
    histogram = filled()
    for number in range(MAX_PAST_EDGES + 10):
        histogram.set_edge(1.0 + (number + 1) / 100)

    assert len(histogram._past) <= MAX_PAST_EDGES


def test_values_of_one_step_count_like_single_ones() -> None:
    one, other = filled(0.7, 0.7, 3.0), filled()
    other.observe_all([0.7, 0.7, 3.0])

    assert cumulative(one) == cumulative(other)
    assert total(one) == total(other)


class LiveChange(RuleBasedStateMachine):
    """Any values and changes of the edge, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.histogram = Histogram("x", "X.", BASE)
        self.values: list[float] = []
        self.last: dict[str, float] = {}
        self.after: dict[str, int] = {}

    @rule(value=VALUES)
    def observe(self, value: float) -> None:
        before = cumulative(self.histogram)
        self.histogram.observe(value)
        self.values.append(value)
        # What a rate sees: each series of this moment grows by exactly the values at or below it.
        for label, count in cumulative(self.histogram).items():
            assert count - before[label] == (value <= float(label))

    @rule(edge=EDGES)
    def change(self, edge: float | None) -> None:
        before: Mapping[str, float] = cumulative(self.histogram)
        self.histogram.set_edge(edge)
        now = cumulative(self.histogram)
        assert edge is None or any(float(label) == edge for label in now)
        assert all(now[label] == before[label] for label in now if label in before)

    @invariant()
    def counts_of_the_base_are_exact(self) -> None:
        told = cumulative(self.histogram)
        for bound in BASE:
            assert told[str(bound)] == sum(value <= bound for value in self.values)
        assert told["+Inf"] == len(self.values)

    @invariant()
    def no_series_ever_falls(self) -> None:
        told = cumulative(self.histogram)
        assert list(told.values()) == sorted(told.values())
        for label, count in told.items():
            assert count >= self.last.get(label, 0.0), f"le={label} fell"
        self.last |= told


TestLiveChange = LiveChange.TestCase
