"""Loads of a fleet, and the percentiles of its signals."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.simulate.load_profile import (
    LoadProfile,
    Stream,
    bursts,
    constant,
    day,
    markov_modulated,
    ramp,
    sine,
    step,
    trace_rate,
    within,
)
from tandem_engine.simulate.observation import weighted_percentile
from tandem_engine.simulate.workload import Arrival, Shape

TWO = LoadProfile(
    name="two",
    duration_s=400.0,
    streams=(
        Stream(rate=constant(2.0), shapes=(Shape(100, 10), Shape(200, 20))),
        Stream(rate=within(constant(1.0), 100.0, 200.0), shapes=(Shape(4000, 5),)),
    ),
)


def test_requests_and_flows_of_a_profile_have_its_rate() -> None:
    requests = list(TWO.requests(Random(1)))
    counts = [count for _, count in TWO.flows(1.0)]
    times = [arrival.due_s for arrival, _ in requests]

    assert times == sorted(times)
    assert len(requests) == pytest.approx(900, rel=0.1)
    assert sum(counts) == pytest.approx(900.0)
    long = [arrival.due_s for arrival, _ in requests if arrival.shape.num_input == 4000]
    assert 100.0 <= min(long) < max(long) < 200.0
    assert TWO.streams[0].mean_shape == Shape(150, 15)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert list(TWO.requests(Random(1))) == list(TWO.requests(Random(1)))
    assert list(TWO.requests(Random(1))) != list(TWO.requests(Random(2)))


def test_rates_by_hand() -> None:
    assert [step(10.0, 30.0)(now) for now in (5.0, 15.0, 25.0)] == [3.5, 7.0, 3.5]
    assert [ramp(10.0, 30.0)(now) for now in (0.0, 15.0)] == pytest.approx([1.0, 9.0])
    assert [bursts(10.0)(now) for now in (0.0, 270.0, 329.0, 330.0, 870.0)] == [3, 9, 9, 3, 9]
    assert [sine(10.0, 40.0)(now) for now in (0.0, 20.0)] == pytest.approx([1.0, 9.0])
    assert [day(constant(8.0))(hour * 3600.0) for hour in (0, 12)] == pytest.approx([2.0, 8.0])


def test_bursts_of_a_markov_chain_last_as_long_as_they_are_to() -> None:
    rate = markov_modulated(Random(1), 100_000.0, calm_s=90.0, busy_s=20.0, calm=0.25)
    rates = [rate(second) for second in range(100_000)]
    num_bursts = sum(pair == (0.25, 1.0) for pair in pairwise(rates))

    assert set(rates) == {0.25, 1.0}
    assert rates[0] == 0.25
    assert rates.count(1.0) / num_bursts == pytest.approx(20.0, rel=0.1)
    assert rates.count(0.25) / num_bursts == pytest.approx(90.0, rel=0.1)


def test_a_trace_repeats_its_bins_scaled_to_the_busiest() -> None:
    trace = [Arrival(each, Shape(1, 1)) for each in (0.0, 1.0, 2.0, 11.0, 25.0)]
    rate = trace_rate(trace, 6.0)

    assert [rate(now) for now in (5.0, 15.0, 25.0, 35.0)] == [6.0, 2.0, 6.0, 2.0]


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50), st.integers(1, 99))
def test_a_percentile_has_its_share_at_or_below(values: list[float], percentile: int) -> None:
    found = weighted_percentile([(value, 2.0) for value in values], percentile)

    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percentile / 100 - 1e-6
    assert sum(value < found for value in values) <= len(values) * percentile / 100 + 1e-6
