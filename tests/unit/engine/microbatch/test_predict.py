"""The predicted time of a step in two halves, against an event by event simulation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.microbatch.predict import Work, halves_seconds, whole_seconds
from tests.unit.engine.microbatch.steps import prices

SECONDS = st.floats(0.0, 1.0)
TOKENS = st.integers(1, 4000)
STAGES = st.integers(1, 12)


def simulated(first: Work, second: Work, stages: int, link: dict[int, float]) -> float:
    """Begin each stage and each collective as early as its rules let it."""
    works, ends = (first, second), dict[tuple[str, int, int], float]()
    for stage in range(stages):
        for half, work in enumerate(works):
            turn = ("compute", 1, stage - 1) if half == 0 else ("compute", 0, stage)
            own = ("link", half, stage - 1)
            begin = max(ends.get(turn, 0.0), ends.get(own, 0.0))
            ends["compute", half, stage] = begin + work.compute_s / stages
            turn = ("link", 1, stage - 1) if half == 0 else ("link", 0, stage)
            begin = max(ends.get(turn, 0.0), ends["compute", half, stage])
            ends["link", half, stage] = begin + link[half]
    return max(ends.values())


@given(SECONDS, SECONDS, TOKENS, TOKENS, STAGES)
def test_the_recurrence_is_the_simulation(
    a_s: float, b_s: float, a_tokens: int, b_tokens: int, stages: int
) -> None:
    at = prices(num_collectives=stages)
    first, second = Work(a_tokens, a_s), Work(b_tokens, b_s)
    link = {0: at.collective_s(a_tokens), 1: at.collective_s(b_tokens)}

    taken = halves_seconds(first, second, at)

    assert taken == pytest.approx(simulated(first, second, stages, link))
    communication = stages * (link[0] + link[1])
    assert max(a_s + b_s, communication) <= taken * (1 + 1e-9)
    assert taken <= (a_s + b_s + communication) * (1 + 1e-9)


def test_halves_that_are_alike_hide_all_but_the_ends() -> None:
    at = prices(num_collectives=100, latency_s=0.0, byte_s=1e-6, token_bytes=1)
    half = Work(1000, 0.1)

    assert whole_seconds(Work(2000, 0.2), at) == pytest.approx(0.4)
    assert halves_seconds(half, half, at) == pytest.approx(0.2 + 0.001)
