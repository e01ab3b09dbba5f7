"""The capacity that a replica predicts of itself, against the real scheduler's."""

from collections.abc import Sequence
from random import Random

import pytest

from benchmarks.scheduling.comparison import Task, run_at
from benchmarks.scheduling.policies import parse_targets
from benchmarks.scheduling.predicted import Prediction, predicted_at, shape_of, tasks_for
from benchmarks.scheduling.workload import with_poisson_arrivals
from tandem_engine.scheduler.latency.capacity import CapacityBound, PredictedCapacity
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.workload import Arrival, Shape

pytestmark = pytest.mark.slow


def chats(count: int) -> list[Arrival]:
    """Lengths of the order of a chat: prompts around 400, answers around 120 tokens."""
    rng = Random(3)
    shapes = [
        Shape(int(rng.lognormvariate(6.0, 0.6)), max(2, int(rng.lognormvariate(4.7, 0.5))))
        for _ in range(100)
    ]
    return with_poisson_arrivals([Arrival(0.0, one) for one in shapes], count=count, seed=4)


def task(machine: str, targets: str, *, count: int) -> Task:
    pairs: Sequence[tuple[str, Sequence[object]]] = [(machine, [parse_targets(targets)])]
    (one,) = tasks_for(chats(count), pairs, noise=Noise(), seed=1)  # type: ignore[arg-type]
    return one


@pytest.mark.parametrize(
    ("machine", "targets"), [("npu", "1500/60"), ("gpu", "400/30"), ("cpu", "1000/40")]
)
def test_the_scheduler_sustains_what_is_predicted_and_not_much_more(
    machine: str, targets: str
) -> None:
    known, load = task(machine, targets, count=100), task(machine, targets, count=350)
    first_guess = predicted_at(known, 1.0).requests_per_s
    # What many rows cost is known when there have been some: at half of the load.
    predicted = predicted_at(known, 0.5 * first_guess).requests_per_s

    assert predicted > 0.0
    within, beyond = run_at(load, 0.8 * predicted), run_at(load, 1.35 * predicted)
    assert within is not None
    assert within.sustained
    assert beyond is None or not beyond.sustained


def test_a_shape_is_the_mean_of_a_load() -> None:
    shape = shape_of([Arrival(0.0, Shape(100, 11)), Arrival(1.0, Shape(300, 31))])

    assert (shape.prompt, shape.output, shape.computed) == (200.0, 21.0, 200.0)
    assert shape.pairs == (100**2 + 300**2) / 4
    # Ten steps that read about 105.5 tokens, thirty that read 315.5.
    assert shape.context == pytest.approx((10 * 105.5 + 30 * 315.5) / 40)


def test_ratios_are_predicted_over_sustained() -> None:
    found = Prediction(
        machine="npu",
        targets=parse_targets("1500/80"),
        sustained=2.0,
        predicted=[
            PredictedCapacity(1.0, CapacityBound.TTFT, 5.0),
            PredictedCapacity(3.0, CapacityBound.TPOT, 15.0),
        ],
    )

    assert found.ratios == [0.5, 1.5]
