"""`python -m benchmarks.autoscaling`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

DEFAULT_TRACE: Final = Path("../shared/traces/AzureLLMInferenceTrace_conv.csv")
DEFAULT_LOADS: Final = ("step", "ramp", "burst", "sine", "long-prompts", "code", "idle", "trace")
_PERIOD_S: Final = 15.0
_WINDOW_S: Final = 60.0

_EPILOG: Final = """\
[bold]Examples[/bold]

Measure a replica's curve once:

    python -m benchmarks.autoscaling curve --out benchmarks/results/npu-curve.json

Every controller on every load, at 4 replicas with the real scheduler and at 100 as flows:

    python -m benchmarks.autoscaling run --curve benchmarks/results/npu-curve.json \\
        --replicas 4 --replicas 100 --out benchmarks/results/autoscaling

Rivals with the parameters that are best for each load, five seeds each:

    python -m benchmarks.autoscaling run --curve benchmarks/results/npu-curve.json \\
        --replicas 10 --tune --seeds 5 --jobs 2 --out benchmarks/results/fronts

What faults cost on the trace:

    python -m benchmarks.autoscaling faults --curve benchmarks/results/npu-curve.json

The error of flows against the real scheduler:

    python -m benchmarks.autoscaling accuracy

A day at 1,000 replicas:

    python -m benchmarks.autoscaling run --load day --replicas 1000

docs/benchmarks/autoscaling.md explains the figures.
"""

app = make_app(
    description="Controllers of the number of replicas under a virtual clock.",
    epilog=_EPILOG,
)

_Replicas = Annotated[
    list[int] | None,
    typer.Option(min=1, help="Replicas that the busiest moments need, about; several may be."),
]
_Seeds = Annotated[int, typer.Option(min=1, help="Seeds; from --seed on.")]
_Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
_Model = Annotated[
    str,
    typer.Option(
        help="scheduler: the real one; flow: by the curve; auto: flow from 9 replicas, "
        "or an hour on, where all requests are of one kind."
    ),
]
_ColdStart = Annotated[float, typer.Option(min=0, help="Seconds of a start, mean.")]
_Period = Annotated[float, typer.Option(min=1, help="Seconds between decisions.")]
_Window = Annotated[float, typer.Option(min=1, help="Seconds of the signals' window.")]
_Room = Annotated[
    float, typer.Option(min=1, help="Highest number of replicas, as a multiple of --replicas.")
]
_Hours = Annotated[float | None, typer.Option(min=0.01, help="Only so much of a load.")]
_WarmUp = Annotated[
    bool,
    typer.Option(
        "--warm-up", help="Each load twice, only the second time counts: controllers have a past."
    ),
]
_Curve = Annotated[Path | None, typer.Option(help="File of `curve`; default: measure one.")]
_Trace = Annotated[Path, typer.Option(help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")]
_Machine = Annotated[str, typer.Option(help="npu, gpu or cpu: a price list of steps.")]
_Target = Annotated[str, typer.Option(help="TTFT/TPOT in ms, such as 1500/80.")]
_Seed = Annotated[int, typer.Option(help="Seed of arrivals, noise and cold starts.")]
_Requests = Annotated[
    int, typer.Option(min=40, help="Requests of each load by which the curve is measured.")
]


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.autoscaling")


@app.command()
def run(
    *,
    load: Annotated[
        list[str] | None,
        typer.Option(
            help="step, ramp, burst, sine, long-prompts, code, idle, trace, day; several may."
        ),
    ] = None,
    controller: Annotated[
        list[str] | None,
        typer.Option(help="Controllers by name, or name=parameter; default: all."),
    ] = None,
    replicas: _Replicas = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Each also with other parameters: Pareto fronts.")
    ] = False,
    seeds: _Seeds = 1,
    jobs: _Jobs = 1,
    model: _Model = "auto",
    cold_start: _ColdStart = 60.0,
    period: Annotated[float, typer.Option(min=1, help="Seconds between decisions.")] = _PERIOD_S,
    window: Annotated[
        float, typer.Option(min=1, help="Seconds of the signals' window.")
    ] = _WINDOW_S,
    failure: Annotated[
        list[float] | None, typer.Option(help="Second at which a replica fails; several may be.")
    ] = None,
    room: _Room = 2.0,
    hours: _Hours = None,
    warm_up: _WarmUp = False,
    curve: _Curve = None,
    trace: _Trace = DEFAULT_TRACE,
    machine: _Machine = "npu",
    target: _Target = "1500/80",
    requests: _Requests = 400,
    seed: _Seed = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json and result.png.")] = None,
) -> None:
    """Run each controller on each load: attainment, replica-hours, decisions."""
    with report_errors():
        from benchmarks.autoscaling.session import ReplicaSettings, RunSettings, run_controllers
        from benchmarks.scheduling.policies import parse_targets

        run_controllers(
            RunSettings(
                replicas=ReplicaSettings(
                    trace=trace,
                    machine=machine,
                    targets=parse_targets(target),
                    requests=requests,
                    seed=seed,
                    curve=curve,
                ),
                loads=tuple(load or DEFAULT_LOADS),
                controllers=tuple(controller or ()),
                tune=tune,
                sizes=tuple(replicas or (4,)),
                num_seeds=seeds,
                num_processes=jobs,
                model=model,
                cold_start_s=cold_start,
                period_s=period,
                window_s=window,
                failures_s=tuple(failure or ()),
                room=room,
                hours=hours,
                warm_up=warm_up,
            ),
            out=out,
        )


@app.command()
def faults(
    *,
    load: Annotated[list[str] | None, typer.Option(help="As of run; default: trace.")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="sick, blind, never, refused, reset, restart, nan, clock; several may be; "
            "default: all."
        ),
    ] = None,
    replicas: _Replicas = None,
    seeds: _Seeds = 1,
    jobs: _Jobs = 1,
    model: _Model = "auto",
    cold_start: _ColdStart = 60.0,
    room: _Room = 2.0,
    hours: _Hours = None,
    curve: _Curve = None,
    trace: _Trace = DEFAULT_TRACE,
    machine: _Machine = "npu",
    target: _Target = "1500/80",
    requests: _Requests = 400,
    seed: _Seed = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """Run the operator's loop with and without faults: attainment, replica-hours, what it tells."""
    with report_errors():
        from benchmarks.autoscaling.faults import FAULTS
        from benchmarks.autoscaling.session import ReplicaSettings, RunSettings, run_faults
        from benchmarks.autoscaling.summary import OWN
        from benchmarks.scheduling.policies import parse_targets

        run_faults(
            RunSettings(
                replicas=ReplicaSettings(
                    trace=trace,
                    machine=machine,
                    targets=parse_targets(target),
                    requests=requests,
                    seed=seed,
                    curve=curve,
                ),
                loads=tuple(load or ("trace",)),
                controllers=(OWN,),
                tune=False,
                sizes=tuple(replicas or (4,)),
                num_seeds=seeds,
                num_processes=jobs,
                model=model,
                cold_start_s=cold_start,
                period_s=_PERIOD_S,
                window_s=_WINDOW_S,
                failures_s=(),
                room=room,
                hours=hours,
            ),
            tuple(fault or FAULTS),
            out=out,
        )


@app.command(name="curve")
def measure(
    *,
    out: Annotated[Path, typer.Option(help="File to write.")],
    trace: _Trace = DEFAULT_TRACE,
    machine: _Machine = "npu",
    target: _Target = "1500/80",
    requests: _Requests = 400,
    seed: _Seed = 1,
) -> None:
    """Measure a replica's curve on the real scheduler; flows interpolate in it."""
    with report_errors():
        from benchmarks.autoscaling.session import ReplicaSettings, run_curve
        from benchmarks.scheduling.policies import parse_targets

        run_curve(
            ReplicaSettings(
                trace=trace,
                machine=machine,
                targets=parse_targets(target),
                requests=requests,
                seed=seed,
                curve=None,
            ),
            out=out,
        )


@app.command()
def accuracy(
    *,
    replicas: Annotated[int, typer.Option(min=2, help="Replicas.")] = 3,
    seconds: Annotated[float, typer.Option(min=60, help="Length of each load.")] = 600.0,
    only: Annotated[str, typer.Option(help="Only loads whose name contains this.")] = "",
    curve: _Curve = None,
    trace: _Trace = DEFAULT_TRACE,
    machine: _Machine = "npu",
    target: _Target = "1500/80",
    requests: _Requests = 400,
    seed: _Seed = 1,
) -> None:
    """Run the same loads with the real scheduler and as flows: the error of the latter."""
    with report_errors():
        from benchmarks.autoscaling.session import ReplicaSettings, run_accuracy
        from benchmarks.scheduling.policies import parse_targets

        run_accuracy(
            ReplicaSettings(
                trace=trace,
                machine=machine,
                targets=parse_targets(target),
                requests=requests,
                seed=seed,
                curve=curve,
            ),
            size=replicas,
            duration_s=seconds,
            only=only,
        )
