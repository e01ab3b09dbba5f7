"""Arrivals and traces."""

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.arrivals import poisson_arrivals
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.trace import parse_trace
from tandem_engine.simulate.workload import Arrival, Shape, clip, speed_up

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
RATES = st.floats(0.01, 1000)


@given(RATES, st.integers())
def test_the_same_seed_gives_the_same_arrivals_in_order(rate: float, seed: int) -> None:
    times = list(islice(poisson_arrivals(rate, seed), 50))

    assert times == list(islice(poisson_arrivals(rate, seed), 50))
    assert times == sorted(times)


@pytest.mark.parametrize("rate", [0.5, 8.0, 300.0])
def test_arrivals_have_the_rate_and_the_scatter_of_a_poisson_process(rate: float) -> None:
    times = [0.0, *islice(poisson_arrivals(rate, seed=1), 20_000)]
    gaps = [later - earlier for earlier, later in pairwise(times)]

    mean = math.fsum(gaps) / len(gaps)
    deviation = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps))

    assert mean == pytest.approx(1 / rate, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_another_seed_gives_other_arrivals() -> None:
    assert next(poisson_arrivals(1.0, 0)) != next(poisson_arrivals(1.0, 1))


def test_an_infinite_rate_gives_zeros() -> None:
    assert list(islice(poisson_arrivals(math.inf, 0), 3)) == [0, 0, 0]


def test_a_trace_begins_at_zero_and_is_in_order() -> None:
    rows = [
        HEAD,
        "2023-11-16 18:15:50.0000000,396,109",
        "2023-11-16 18:15:46.5000000,374,0",
        "2023-11-16 18:16:46.5000000,1,1",
    ]

    assert parse_trace(rows, limit=2) == [
        Arrival(0.0, Shape(374, 1)),
        Arrival(3.5, Shape(396, 109)),
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "The trace has no column TIMESTAMP"),
        ([HEAD], "The trace has no rows"),
        (["TIMESTAMP,Tokens", "2023-11-16,1"], "no column ContextTokens"),
        (
            [HEAD, "2023-11-16,1,1", "yesterday,1,1"],
            "Line 3 of the trace is not a time and two token counts",
        ),
        ([HEAD, "2023-11-16,1"], "Line 2 of the trace"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(lines: list[str], sentence: str) -> None:
    with pytest.raises(BenchmarkError, match=sentence):
        parse_trace(lines)


@given(st.lists(st.builds(Shape, st.integers(1, 5000), st.integers(1, 5000))), st.integers(2, 4000))
def test_clipped_requests_fit_and_the_others_stay(shapes: list[Shape], max_tokens: int) -> None:
    arrivals = [Arrival(float(i), shape) for i, shape in enumerate(shapes)]

    cut, num_cut = clip(arrivals, max_tokens)

    assert num_cut == sum(shape.num_tokens > max_tokens for shape in shapes)
    for was, now in zip(arrivals, cut, strict=True):
        assert now.due_s == was.due_s
        assert min(now.shape.num_input, now.shape.num_output) >= 1
        assert now.shape.num_tokens == min(was.shape.num_tokens, max_tokens) or (
            now.shape.num_tokens < max_tokens and now.shape.num_input == was.shape.num_input
        )


def test_twice_the_speed_is_half_the_time() -> None:
    assert speed_up([Arrival(3.0, Shape(1, 1))], 2.0) == [Arrival(1.5, Shape(1, 1))]
