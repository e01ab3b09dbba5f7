"""No step of a healthy rank is longer than ranks may compute, however little was learnt."""

from hypothesis import assume, given
from hypothesis import strategies as st

from tandem_engine.runner.group_executor import SLOWER
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import Coefficients, StepPrices, StepTimeModel

BOUND_S = 20.0
"""Longest silence of a rank as replicas have it; a step may take SLOWER predictions longer."""


def steps(prompt: int, num_decodes: int) -> list[StepLoad]:
    """The steps of one short request."""
    return [chunk(prompt, 0)] + [
        StepLoad(num_tokens=1, num_rows=1, chunk_context=0.0, decode_context=prompt + at)
        for at in range(num_decodes)
    ]


def chunk(tokens: int, start: int) -> StepLoad:
    """A step of one prompt chunk."""
    return StepLoad(
        num_tokens=tokens,
        num_rows=1,
        chunk_context=tokens * (start + tokens / 2),
        decode_context=0,
    )


@st.composite
def machines(draw: st.DrawFn) -> Coefficients:
    """Prices from a small model on a fast device to a large one on a slow one, for 3 s a step."""
    base = 10 ** draw(st.floats(-3, 0.5))
    return Coefficients(
        base=base,
        token=base / draw(st.floats(10, 400)),
        chunk_context=base / 10 ** draw(st.floats(4, 6)),
        decode_context=base / 10 ** draw(st.floats(2.5, 4)),
        row=base / draw(st.floats(20, 200)),
    )


@given(
    machines(),
    st.lists(st.tuples(st.integers(4, 32), st.integers(4, 40)), min_size=1, max_size=4),
    st.sampled_from([(2048, 0), (8192, 0), (2048, 30_000)]),
)
def test_the_first_long_prompt_after_short_ones_is_no_endless_step(
    machine: Coefficients, requests: list[tuple[int, int]], long: tuple[int, int]
) -> None:
    truth = StepPrices(machine, knee=0)
    model = StepTimeModel()
    for load in (load for request in requests for load in steps(*request)):
        model.observe(load, truth.predict(load))
    assume(model.num_fits > 0)

    load = chunk(*long)

    assert truth.predict(load) < BOUND_S + SLOWER * model.predict(load)
