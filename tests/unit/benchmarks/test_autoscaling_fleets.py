"""The loop closed by a simulated fleet: Tandem's decisions, and the figures of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from benchmarks.autoscaling.controllers import ControllerSettings, make_controller
from benchmarks.autoscaling.replicas import make_flows
from benchmarks.autoscaling.runs import FleetRun, Task, run_task, run_tasks
from benchmarks.autoscaling.summary import (
    FLAP_WINDOW_S,
    Spread,
    Summary,
    best_tuned,
    hours_at,
    num_flaps,
    settling_periods,
    summarize,
    unbeaten,
)
from tandem_engine.simulate.account import FleetResult
from tandem_engine.simulate.fleet import Fleet, FleetSettings
from tandem_engine.simulate.load_profile import LoadProfile, Stream
from tandem_engine.simulate.observation import Target
from tandem_engine.simulate.replica import Predictions
from tandem_engine.simulate.workload import Shape
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.benchmarks.test_autoscaling import CURVE, OPTIONS, SHAPE

STEP: Final = Task(load="step", size=6, controller="tandem", seed=1)
MOST: Final = 12
WINDOW_S: Final = ScalingPolicy(max_replicas=MOST).down_window_s


def predict(_: Mapping[Shape, float]) -> Predictions:
    """Return what is right for the curve: 4 requests a second, 1.2 at a time."""
    return Predictions(CURVE.capacity, 1.2, 0.1, 0.02)


def run_rates(rates: Sequence[float], *, seconds: float = 300.0, seed: int = 1) -> FleetResult:
    """Run Tandem's decisions on rates that each last for some time."""
    stream = Stream(
        rate=lambda now: rates[min(int(now / seconds), len(rates) - 1)], shapes=(SHAPE,)
    )
    load = LoadProfile(name="rates", duration_s=seconds * len(rates), streams=(stream,))
    ttft, tpot = Target(target_s=1.5), Target(target_s=0.08)
    controller = make_controller(
        "tandem",
        ControllerSettings(
            ttft=ttft,
            tpot=tpot,
            min_replicas=1,
            max_replicas=MOST,
            period_s=15.0,
            window_s=60.0,
            cold_start_s=60.0,
            capacity=lambda _: CURVE.capacity,
            load=load,
        ),
    )
    fleet = Fleet(
        FleetSettings(ttft=ttft, tpot=tpot, max_replicas=MOST),
        lambda count, now: make_flows(CURVE, count, now),
        controller,
        cold_start_s=lambda: 60.0,
        predict=predict,
    )
    return fleet.run(load.flows(5.0, Random(seed)), load.duration_s)


def numbers(result: FleetResult) -> list[tuple[float, int]]:
    return [(moment.now_s, moment.desired) for moment in result.moments]


@hypothesis_settings(max_examples=hypothesis_settings().max_examples // 8)
@given(
    rates=st.lists(st.sampled_from([0.0, 0.5, 4.0, 12.0, 30.0, 60.0]), min_size=2, max_size=6),
    seed=st.integers(0, 99),
)
def test_nothing_is_removed_within_the_window_after_an_addition(
    rates: list[float], seed: int
) -> None:
    counts = numbers(run_rates(rates, seed=seed))
    changes = [(now, after - before) for (_, before), (now, after) in pairwise(counts)]
    grown = [now for now, change in changes if change > 0]
    removed = [now for now, change in changes if change < 0]

    assert all(1 <= count <= MOST for _, count in counts)
    assert not [1 for up in grown for down in removed if 0.0 <= down - up < WINDOW_S]


def test_loads_that_change_once_make_few_flaps() -> None:
    """A queue that the change leaves, or another rule, may add one that is removed again."""
    rng = Random(5)
    loads = [(rng.uniform(1, 40), rng.uniform(1, 40), rng.randint(0, 99)) for _ in range(40)]
    flaps = [flaps_after_a_change(before, after, seed) for before, after, seed in loads]

    assert sum(flaps) <= 4
    assert max(flaps) <= 1


@pytest.mark.parametrize(("before", "after", "seed"), [(17.0, 21.0, 6), (12.1, 16.0, 684)])
def test_a_load_between_two_numbers_makes_no_flap(before: float, after: float, seed: int) -> None:
    assert flaps_after_a_change(before, after, seed) == 0


def flaps_after_a_change(before: float, after: float, seed: int) -> int:
    """Changes back in forty minutes, from the moment at which a rate becomes another one."""
    counts = numbers(run_rates((before, *(4 * (after,))), seconds=600.0, seed=seed))
    return num_flaps([(now, count) for now, count in counts if now > 600.0], FLAP_WINDOW_S)


def test_a_run_is_decided_by_its_seed() -> None:
    options = replace(OPTIONS, hours=0.25)
    first, again = (run_task(options, STEP).result for _ in range(2))
    other = run_task(options, replace(STEP, seed=2)).result
    (elsewhere,) = run_tasks(options, [STEP], num_processes=2)

    assert first == again == elsewhere.result
    assert first != other


def test_a_step_settles_and_is_cheaper_than_the_maximum() -> None:
    tandem, fixed = (
        run_task(OPTIONS, replace(STEP, controller=one)) for one in ("tandem", "fixed")
    )
    settled = settling_periods(tandem)

    assert settled is not None
    assert settled <= 6.0
    assert settling_periods(fixed) == 0.0
    assert tandem.result.attainment > 0.9
    assert tandem.result.replica_hours < 0.7 * fixed.result.replica_hours


# ── figures ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("counts", "flaps"),
    [
        ([2, 3, 3, 2], 1),
        ([3, 2, 3], 1),
        ([2, 3, 4, 5], 0),
        ([2, 3, *([3] * 20), 2], 0),
        ([2, 3, 2, 3, 2], 3),
        ([2], 0),
    ],
)
def test_a_change_back_within_the_window_is_a_flap(counts: list[int], flaps: int) -> None:
    assert num_flaps([(15.0 * i, count) for i, count in enumerate(counts)], 300.0) == flaps


def summary(controller: str, attainment: float, hours: float) -> Summary:
    values: dict[str, Any] = dict.fromkeys(("num_flaps", "most", "wall_s"), Spread(0.0, 0.0))
    return Summary(
        load="step",
        size=4,
        controller=controller,
        model="flow",
        num_seeds=1,
        attainment=Spread(attainment, 0.0),
        replica_hours=Spread(hours, 0.0),
        settling_periods=None,
        num_unsettled=0,
        **values,
    )


ROWS: Final = [
    summary("keda", 0.90, 5.0),
    summary("keda=1", 0.95, 6.0),
    summary("keda=2", 0.97, 5.5),
    summary("hpa", 0.99, 9.0),
]


def test_the_best_parameter_has_the_fewest_hours_at_an_attainment() -> None:
    chosen = [best_tuned(ROWS, "keda", goal) for goal in (0.8, 0.94, 0.99)]

    assert [one.controller for one in chosen if one] == ["keda", "keda=2", "keda=2"]
    assert best_tuned(ROWS, "llm-d", 0.5) is None


def test_the_rows_that_no_other_beats_are_kept() -> None:
    assert [row.controller for row in unbeaten(ROWS)] == ["keda", "keda=2", "hpa"]


def test_hours_at_an_attainment_lie_between_the_rows_that_are_not_beaten() -> None:
    # keda=1 is beaten: for 6 hours it attains less than keda=2 for 5.5.
    assert hours_at(ROWS, "keda", 0.935) == pytest.approx(5.25)
    assert hours_at(ROWS, "keda", 0.97) == pytest.approx(5.5)
    assert [hours_at(ROWS, "keda", goal) for goal in (0.89, 0.98)] == [None, None]


def test_a_summary_is_over_the_seeds() -> None:
    options = replace(OPTIONS, hours=0.1)
    runs: list[FleetRun] = [run_task(options, replace(STEP, seed=seed)) for seed in (1, 2)]
    (row,) = summarize(runs)
    attained = [run.result.attainment for run in runs]

    assert row.num_seeds == 2
    assert row.attainment.mean == pytest.approx(sum(attained) / 2)
    # Six minutes: the step comes after ten.
    assert (row.settling_periods, row.num_unsettled) == (None, 0)
