"""The loop under faults: what it loses, how far it grows, and what it tells."""

import math
from pathlib import Path
from random import Random
from typing import Final

import pytest
from typer.testing import CliRunner

from benchmarks.autoscaling.cli import app
from benchmarks.autoscaling.fault_report import FaultRow, fault_rows
from benchmarks.autoscaling.faults import FAULTS, NONE, MeasuringController, with_fault
from benchmarks.autoscaling.replicas import make_flows
from benchmarks.autoscaling.runs import FleetRun, Task
from tandem_engine.simulate.fleet import Fleet, FleetSettings
from tandem_engine.simulate.load_profile import LoadProfile, Stream
from tandem_engine.simulate.observation import Target
from tandem_engine.simulate.replica import Predictions
from tandem_operator.autoscaler.measure import Targets
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.benchmarks.test_autoscaling import CURVE, SHAPE, curve, trace

__all__ = ("curve", "trace")

REASONS: Final = {
    "sick": "computes no step though requests wait there",
    "blind": "one replica is left out: Prometheus does not scrape",
    "never": "has not answered for longer than a start takes",
    "refused": "–",
    "reset": "–",
    "restart": "Prometheus cannot be asked",
    "nan": "is not a number",
    "clock": "–",
}
RATES: Final = {
    "step": lambda now: 24.0 if now < 900.0 else 48.0,
    "sine": lambda now: 36.0 - 20.0 * math.cos(2.0 * math.pi * now / 1800.0),
}
DURATION_S: Final = 2400.0
MOST: Final = 40


def run_fault(load: str, fault: str) -> FleetRun:
    """Run a load of at most 56 requests a second on replicas that carry four."""
    stream = Stream(rate=RATES[load], shapes=(SHAPE,))
    profile = LoadProfile(name=load, duration_s=DURATION_S, streams=(stream,))
    ttft, tpot = Target(target_s=1.5), Target(target_s=0.08)
    controller = MeasuringController(
        ScalingPolicy(max_replicas=MOST),
        Targets(ttft_s=1.5, tpot_s=0.08),
        FAULTS[fault],
        cold_start_s=60.0,
        window_s=60.0,
    )
    settings = FleetSettings(ttft=ttft, tpot=tpot, max_replicas=MOST, initial_replicas=8)
    fleet = Fleet(
        with_fault(settings, fault),
        lambda count, now: make_flows(CURVE, count, now),
        controller,
        cold_start_s=lambda: 60.0,
        predict=lambda _: Predictions(CURVE.capacity, 9.0, 0.1, 0.02),
    )
    return FleetRun(
        task=Task(load=load, size=12, controller="tandem", seed=1, fault=fault),
        model="flow",
        duration_s=DURATION_S,
        grows_s=None,
        stays_s=DURATION_S,
        cold_start_s=60.0,
        period_s=15.0,
        wall_s=0.0,
        ttft_target_s=1.5,
        result=fleet.run(profile.flows(2.0, Random(1)), DURATION_S),
        explained=controller.explained,
    )


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], FaultRow]:
    runs = [run_fault(load, fault) for load in RATES for fault in FAULTS]
    return {(row.load, row.fault): row for row in fault_rows(runs)}


@pytest.mark.parametrize("load", RATES)
@pytest.mark.parametrize("fault", REASONS)
def test_a_fault_costs_at_most_a_point_and_asks_for_no_more_than_it_takes(
    rows: dict[tuple[str, str], FaultRow], load: str, fault: str
) -> None:
    row = rows[load, fault]

    assert row.attainment_lost <= 0.01
    # A lost replica is replaced.
    assert row.more <= (1 if fault in {"sick", "never"} else 0)


@pytest.mark.parametrize("fault", REASONS)
def test_the_reason_is_named(rows: dict[tuple[str, str], FaultRow], fault: str) -> None:
    assert REASONS[fault] in rows["step", fault].reason


def test_without_a_fault_nothing_is_told(rows: dict[tuple[str, str], FaultRow]) -> None:
    assert {(rows[load, NONE].reason, rows[load, NONE].attainment_lost) for load in RATES} == {
        ("–", 0.0)
    }


def test_the_command_prints_each_fault_beside_none(trace: Path, curve: Path) -> None:
    options = ["faults", "--curve", str(curve), "--trace", str(trace), "--model", "flow"]
    done = CliRunner().invoke(app, [*options, "--hours", "0.1", "--fault", "sick"])
    wrong = CliRunner().invoke(app, [*options, "--fault", "none-such"])
    unknown = CliRunner().invoke(app, [*options, "--model", "other"])

    assert done.exit_code == 0, done.output
    assert "sick: a replica hangs" in " ".join(done.output.split())
    assert wrong.exit_code == 2
    assert "--fault is 'none-such'; it must be one of" in wrong.output
    assert unknown.exit_code == 2
    assert "--model is 'other'; it must be one of auto, scheduler, flow" in unknown.output
