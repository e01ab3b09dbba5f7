"""`python -m benchmarks.scheduling`: options, help, exit codes.

Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 Ctrl-C.
"""
# ruff: noqa: PLC0415  # help and wrong usage answer at once: the rest is imported when it runs

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.serving.command_line import make_app, report_errors

DEFAULT_TRACE: Final = Path("../shared/traces/AzureLLMInferenceTrace_conv.csv")
DEFAULT_TARGETS: Final = ("6000/45", "1500/80", "800/150")
DEFAULT_MODEL: Final = Path("examples/tandem-tiny")

_EPILOG: Final = """\
[bold]Examples[/bold]

Static chunks against the SLO budget under a virtual clock, three pairs of targets:

    python -m benchmarks.scheduling simulate --out benchmarks/results/simulate

Another machine, one pair (TTFT/TPOT in ms), Poisson arrivals with the trace's lengths:

    python -m benchmarks.scheduling simulate --machine gpu --target 500/30 --arrivals poisson

The same comparison on a real model in this process, and on one with random weights:

    python -m benchmarks.scheduling engine
    python -m benchmarks.scheduling engine --model random

What a replica predicts that it can carry, against what it sustains:

    python -m benchmarks.scheduling predict

The cost of the scheduler itself:

    python -m benchmarks.scheduling cost --out benchmarks/results/cost

docs/benchmarks/method.md explains the figures.
"""

app = make_app(
    description="Measure the scheduler: the gain of its SLO budget, and its cost.",
    epilog=_EPILOG,
)

_Trace = Annotated[Path, typer.Option(help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")]
_Out = Annotated[Path | None, typer.Option(help="Folder for result.json and result.png.")]
_Chunks = Annotated[
    list[int] | None, typer.Option("--chunk", help="Static splitChunkTokens that compare_policies.")
]


def main() -> None:
    """Run the command line."""
    app(prog_name="python -m benchmarks.scheduling")


@app.command()
def simulate(
    *,
    trace: _Trace = DEFAULT_TRACE,
    machine: Annotated[str, typer.Option(help="npu, gpu or cpu: a price list of steps.")] = "npu",
    arrivals: Annotated[
        str, typer.Option(help="trace: its own gaps, stretched; poisson: random; or both.")
    ] = "both",
    target: Annotated[
        list[str] | None, typer.Option(help="TTFT/TPOT in ms, such as 1500/80; several may be.")
    ] = None,
    chunk: _Chunks = None,
    requests: Annotated[int, typer.Option(min=10, help="Requests of a load.")] = 300,
    first: Annotated[int, typer.Option(min=0, help="Row of the trace to begin with.")] = 3000,
    noise: Annotated[
        float, typer.Option(min=0, help="Standard deviation of the logarithm of a step's time.")
    ] = 0.05,
    outliers: Annotated[
        float, typer.Option(min=0, max=1, help="Share of steps that take four times as long.")
    ] = 0.005,
    precision: Annotated[
        float, typer.Option(min=0.005, max=0.5, help="Of the highest load, as a share.")
    ] = 0.03,
    seed: Annotated[int, typer.Option(help="Seed of Poisson arrivals and noise.")] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores.")] = None,
    out: _Out = None,
) -> None:
    """Run the real scheduler under a virtual clock; seek the highest load of each policy."""
    with report_errors():
        from benchmarks.scheduling.policies import STATIC_CHUNKS, parse_targets
        from benchmarks.scheduling.session import SimulateSettings, run_simulate

        run_simulate(
            SimulateSettings(
                trace=trace,
                machine=machine,
                arrivals=arrivals,
                targets=tuple(map(parse_targets, target or DEFAULT_TARGETS)),
                chunks=tuple(chunk or STATIC_CHUNKS),
                num_requests=requests,
                first=first,
                noise=noise,
                outliers=outliers,
                precision=precision,
                seed=seed,
                num_processes=jobs or len(os.sched_getaffinity(0)),
            ),
            out=out,
        )


@app.command()
def predict(
    *,
    trace: _Trace = DEFAULT_TRACE,
    machine: Annotated[
        list[str] | None, typer.Option(help="npu, gpu or cpu; several may be. [all]")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="TTFT/TPOT in ms. [two for each machine]")
    ] = None,
    requests: Annotated[int, typer.Option(min=10, help="Requests of a load.")] = 500,
    precision: Annotated[
        float, typer.Option(min=0.005, max=0.5, help="Of the highest load, as a share.")
    ] = 0.03,
    seed: Annotated[int, typer.Option(help="Seed of Poisson arrivals and noise.")] = 2,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """Compare the capacity that a replica predicts of itself with the load that it sustains."""
    with report_errors():
        from benchmarks.scheduling.policies import parse_targets
        from benchmarks.scheduling.predicted_session import PredictSettings, run_predict

        run_predict(
            PredictSettings(
                trace=trace,
                machines=tuple(machine or ()),
                targets=tuple(map(parse_targets, target or ())),
                num_requests=requests,
                precision=precision,
                seed=seed,
                num_processes=jobs or len(os.sched_getaffinity(0)),
            ),
            out=out,
        )


@app.command()
def engine(
    *,
    trace: _Trace = DEFAULT_TRACE,
    model: Annotated[
        str, typer.Option(help="Folder of a checkpoint, or random: about 30 M made on the fly.")
    ] = str(DEFAULT_MODEL),
    target: Annotated[
        str | None, typer.Option(help="TTFT/TPOT in ms; default: by a calibration run.")
    ] = None,
    chunk: _Chunks = None,
    shrink: Annotated[float, typer.Option(min=1, help="Divisor of the trace's lengths.")] = 8.0,
    requests: Annotated[int, typer.Option(min=10, help="Requests of a load.")] = 60,
    first: Annotated[int, typer.Option(min=0, help="Row of the trace to begin with.")] = 3000,
    share: Annotated[
        list[float] | None,
        typer.Option(help="Loads, as shares of what the machine can do (a burst finds out)."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repeats.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    out: _Out = None,
) -> None:
    """Serve a load with a real model, in this process and in real time."""
    with report_errors():
        from benchmarks.scheduling.policies import parse_targets
        from benchmarks.scheduling.session import EngineSettings, run_engine

        run_engine(
            EngineSettings(
                trace=trace,
                model=model,
                targets=None if target is None else parse_targets(target),
                chunks=tuple(chunk or (64, 256, 1024)),
                shrink=shrink,
                num_requests=requests,
                first=first,
                shares=tuple(share or (0.8, 1.1, 1.4)),
                repeats=repeats,
                num_threads=threads,
            ),
            out=out,
        )


@app.command()
def cost(
    *,
    steps: Annotated[int, typer.Option(min=10, help="Steps that are measured.")] = 300,
    setting: Annotated[
        str | None, typer.Option(help="Only settings whose name contains this.")
    ] = None,
    memory: Annotated[bool, typer.Option(help="Measure memory too.")] = True,
    out: _Out = None,
) -> None:
    """Time schedule() and complete(), and count the bytes of a request."""
    with report_errors():
        from benchmarks.scheduling.session import run_cost

        run_cost(steps=steps, only=setting, memory=memory, out=out)
