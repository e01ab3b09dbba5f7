"""Output, files and refusals of benchmarks.autoscaling."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.autoscaling import runs
from benchmarks.autoscaling.cli import app
from benchmarks.autoscaling.controllers import (
    ControllerSettings,
    controller_names,
    make_controller,
    register,
    tuned_names,
)
from benchmarks.autoscaling.loads import LOADS, make_load, tick_s
from benchmarks.autoscaling.replicas import load_curve, save_curve
from benchmarks.autoscaling.runs import FleetOptions, FleetRun, Task, run_task
from benchmarks.scheduling.policies import parse_targets
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from tandem_engine.async_engine.capacity_question import CapacityQuestion, MeasuredCapacity
from tandem_engine.simulate.fleet import Controller
from tandem_engine.simulate.load_profile import LoadProfile, Stream, step
from tandem_engine.simulate.machines import MACHINES
from tandem_engine.simulate.observation import FleetObservation, Target
from tandem_engine.simulate.performance_curve import (
    SHARES,
    LoadPoint,
    PerformanceCurve,
    work_s,
)
from tandem_engine.simulate.workload import Arrival, Shape

SHAPE = Shape(100, 11)
FACTS = {"machine": "npu", "trace": "trace.csv", "ttft_ms": 1500.0, "tpot_ms": 80.0}
CURVE = PerformanceCurve(
    points=[
        LoadPoint(rate=1.0, num_ongoing=1.3, kv_usage=0.1, latencies=[(0.1, 0.02)] * len(SHARES)),
        LoadPoint(rate=4.0, num_ongoing=9.0, kv_usage=0.5, latencies=[(0.5, 0.05)] * len(SHARES)),
    ],
    capacity=4.0,
    overload_rate=5.0,
    overload_share=0.8,
    burst_rate=10.0,
    mean_shape=SHAPE,
    work_s=work_s(MACHINES["npu"], SHAPE),
    machine=MACHINES["npu"],
)
TRACE = [Arrival(float(second), SHAPE) for second in range(120)]
OPTIONS = FleetOptions(
    trace=TRACE,
    curve=CURVE,
    targets=parse_targets("1500/80"),
    model="flow",
    cold_start_s=60.0,
    period_s=15.0,
    window_s=60.0,
    failures_s=(),
    room=2.0,
    hours=None,
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [f"2023-11-16 18:15:{number:02}.5000000,100,11" for number in range(60)]
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows), encoding="utf-8")
    return file


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    save_curve(CURVE, FACTS, tmp_path / "curve.json")
    return tmp_path / "curve.json"


def run(trace: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run", "--trace", str(trace), *options])
    return result.exit_code, result.output


def test_run_writes_a_table_a_document_and_a_plot(trace: Path, curve: Path, tmp_path: Path) -> None:
    out = tmp_path / "result"
    code, text = run(
        trace, "--curve", str(curve), "--replicas", "10", "--hours", "0.05", "--out", str(out),
        "--load", "ramp", "--load", "idle", "--seeds", "2", "--tune",
        "--controller", "oracle", "--controller", "tandem", "--controller", "hpa=0.5",
    )  # fmt: skip

    assert code == 0, text
    document = json.loads((out / "result.json").read_text(encoding="utf-8"))
    grids = [*tuned_names("oracle", 20), *tuned_names("tandem", 20)]
    names = ["oracle", "tandem", "hpa=0.5", *grids]
    fleets = document["runs"]
    assert [(each["load"], each["controller"], each["seed"]) for each in fleets] == [
        (load, name, seed) for load in ("ramp", "idle") for name in names for seed in (1, 2)
    ]
    assert all(each["num_completed"] == pytest.approx(each["num_arrived"]) for each in fleets)
    assert all(each["model"] == "flow" for each in fleets)
    assert [len(each["moments"]) for each in fleets if "moments" in each] == [12] * 4
    summaries = [(each["load"], each["controller"]) for each in document["summaries"]]
    assert summaries == [(load, name) for load in ("ramp", "idle") for name in names]
    assert "Rivals with the parameter that is best for each load" in text
    assert "at equal attainment" in " ".join(text.split())
    assert (out / "result.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_has_ended_is_kept_where_the_next_one_is_interrupted(
    trace: Path, curve: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: FleetOptions, task: Task) -> FleetRun:
        if task.seed == 2:
            raise KeyboardInterrupt
        return run_task(options, task)

    monkeypatch.setattr(runs, "run_task", interrupted)
    code, _ = run(
        trace, "--curve", str(curve), "--load", "step", "--controller", "fixed=9",
        "--replicas", "9", "--hours", "0.01", "--seeds", "3", "--out", str(tmp_path),
    )  # fmt: skip

    assert code == 130
    document = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert [each["seed"] for each in document["runs"]] == [1]
    assert [row["num_seeds"] for row in document["summaries"]] == [1]


def test_a_small_fleet_has_the_real_scheduler(trace: Path, curve: Path) -> None:
    code, text = run(
        trace, "--curve", str(curve), "--load", "step", "--controller", "fixed=2",
        "--replicas", "1", "--hours", "0.01",
    )  # fmt: skip

    assert code == 0, text
    rows = [line.split() for line in text.splitlines()]
    assert ["step", "fixed=2", "scheduler", "1"] in [row[:4] for row in rows]
    assert "Rivals" not in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--load", "flood"], "--load is 'flood'; it must be one of step, ramp, burst"),
        (["--controller", "magic"], "--controller is 'magic'; it must be one of fixed, oracle"),
        (["--controller", "keda=0"], "its parameter must be a number above 0"),
        (["--controller", "keda=nan"], "its parameter must be a number above 0"),
        (["--controller", "tandem=1.5"], "its parameter must be a number above 0 and below 1"),
        (["--model", "other"], "--model is 'other'; it must be one of auto, scheduler, flow"),
        (["--target", "500/50"], "was measured with"),
    ],
)
def test_wrong_usage_is_one_sentence(
    trace: Path, curve: Path, options: list[str], sentence: str
) -> None:
    code, text = run(trace, "--curve", str(curve), *options)

    assert code != 0
    assert sentence in " ".join(text.split())


def test_a_curve_is_read_as_it_was_written(curve: Path, tmp_path: Path) -> None:
    assert load_curve(curve, FACTS) == CURVE
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BenchmarkError, match=r"other.json is not a curve; make it with"):
        load_curve(tmp_path / "other.json", FACTS)
    with pytest.raises(BenchmarkError, match=r"The curve .*nowhere.json cannot be read"):
        load_curve(tmp_path / "nowhere.json", FACTS)


# ── loads and controllers ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", LOADS)
def test_the_busiest_moments_of_a_load_need_so_many_replicas(name: str) -> None:
    load = make_load(name, TRACE, CURVE, 10)
    seconds = int(load.duration_s)
    most = max(
        sum(stream.rate(now + 0.5) * CURVE.work(stream.mean_shape) for stream in load.streams)
        for now in range(0, seconds, max(1, seconds // 3600))
    )

    assert name == "idle" or 0.69 * 40.0 < most < 1.01 * 40.0
    assert tick_s(load) == (5.0 if name == "day" else 2.0)


def controller_settings(load: LoadProfile) -> ControllerSettings:
    return ControllerSettings(
        ttft=Target(target_s=1.5),
        tpot=Target(target_s=0.08),
        min_replicas=1,
        max_replicas=12,
        period_s=15.0,
        window_s=60.0,
        cold_start_s=60.0,
        capacity=lambda _: 4.0,
        load=load,
    )


OBSERVATION = FleetObservation(
    ttft=None,
    tpot=None,
    queue_age_s=0.0,
    arrival_rate=0.0,
    capacity_per_replica=None,
    concurrency_per_replica=None,
    zero_load_ttft_s=None,
    zero_load_tpot_s=None,
    kv_usage=None,
    ready=1,
    desired=1,
    starting=0,
    draining=0,
    room=None,
    num_running=0.0,
    num_waiting=0.0,
    busy=0.0,
)


def test_the_oracle_has_replicas_ready_when_the_load_comes() -> None:
    stream = Stream(rate=step(36.0, 900.0), shapes=(SHAPE,))
    load = LoadProfile(name="step", duration_s=900.0, streams=(stream,))
    oracle = make_controller("oracle", controller_settings(load))

    # 12.6 and 25.2 req/s, 0.9 · 4 a replica; the step comes after 300 s.
    seen = [oracle.desired(OBSERVATION, now) for now in (150.0, 240.0, 400.0, 700.0)]
    assert seen == [4, 7, 7, 4]


def test_an_oracle_that_gives_replicas_less_has_more() -> None:
    stream = Stream(rate=step(36.0, 900.0), shapes=(SHAPE,))
    load = LoadProfile(name="step", duration_s=900.0, streams=(stream,))
    oracle = make_controller("oracle=0.45", controller_settings(load))

    assert [oracle.desired(OBSERVATION, now) for now in (150.0, 240.0)] == [7, 14]


def test_a_fixed_number_is_there_from_the_first_second() -> None:
    fleets = [
        run_task(
            replace(OPTIONS, hours=0.1),
            Task(load="step", size=6, controller=name, seed=1),
        )
        for name in ("fixed=3", "fixed")
    ]

    assert [fleet.result.replica_hours for fleet in fleets] == pytest.approx([0.3, 1.2])
    assert {moment.desired for moment in fleets[0].result.moments} == {3}


def test_a_capacity_is_measured_for_a_controller_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def measure(_: CapacityQuestion) -> MeasuredCapacity:
        asked.append(task.controller)
        return MeasuredCapacity(requests_per_s=4.0, concurrency=9.0)

    monkeypatch.setattr(runs, "measure", measure)
    options = replace(OPTIONS, model="scheduler", hours=0.03)
    for name in ("fixed=1", "hpa", "tandem"):
        task = Task(load="step", size=1, controller=name, seed=1)
        run_task(options, task)

    assert set(asked) == {"tandem"}


def test_each_number_is_tried_and_evenly_spaced_ones_of_many() -> None:
    assert tuned_names("fixed", 5) == [f"fixed={number}" for number in range(1, 6)]
    assert tuned_names("fixed", 240)[:2] == ["fixed=10", "fixed=20"]
    assert tuned_names("fixed", 240)[-1] == "fixed=240"


def test_two_classes_of_length_have_the_real_scheduler() -> None:
    options = replace(OPTIONS, model="auto", hours=0.003)
    models = {
        load: run_task(options, Task(load=load, size=9, controller="fixed=9", seed=1)).model
        for load in ("code", "long-prompts", "step")
    }

    assert models == {"code": "scheduler", "long-prompts": "scheduler", "step": "flow"}


def test_the_autoscalers_are_known_by_name() -> None:
    rivals = ["hpa", "keda", "ray-serve", "llm-d", "aibrix"]

    assert controller_names()[:8] == ["fixed", "oracle", "tandem", *rivals]
    assert all(tuned_names(name, 20) for name in rivals)


def test_a_controller_is_found_by_the_name_it_was_registered_with() -> None:
    class Always:
        def desired(self, observation: FleetObservation, now: float) -> int:  # noqa: ARG002
            return observation.ready + 1

    load = LoadProfile(name="none", duration_s=1.0, streams=())

    @register("always")
    def make(_: ControllerSettings) -> Controller:
        return Always()

    made = make_controller("always", controller_settings(load))
    assert made.desired(replace(OBSERVATION, ready=3), 0.0) == 4
    with pytest.raises(WrongUsage, match="--controller is 'none'"):
        make_controller("none", controller_settings(load))
    with pytest.raises(WrongUsage, match="'always=2'; always has no parameter"):
        make_controller("always=2", controller_settings(load))
