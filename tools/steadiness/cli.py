"""`python -m tools.steadiness`: repeats tests beside busy processes, and stops some for seconds."""

import signal
import subprocess
import time
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Annotated, Final

import typer

from tools.steadiness.disturbance import busy_processes, random_stops
from tools.steadiness.failure_counts import FailureCounts
from tools.suite.outcomes import Failure, Outcomes
from tools.suite.run import CHECKOUT, Run

_MAX_SEED: Final = 10**6
_GRACE_S: Final = 30.0
_EXAMPLES: Final = """[bold]Examples[/bold]

python -m tools.steadiness tests/integration/hostile --times 20 --load 4

python -m tools.steadiness tests/unit/serve/pod --times 1 --load 4 --seed 17

python -m tools.steadiness tests/unit --times 10 -n 2
"""

app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_show_locals=False)


def main() -> None:
    """Run the command line."""
    app()


@app.command(epilog=_EXAMPLES)
def steadiness(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", show_default=False)],
    *,
    times: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 20,
    load: Annotated[int, typer.Option(min=0, help="Busy processes beside each run.")] = 4,
    stop: Annotated[
        float, typer.Option(min=0.0, help="Longest time that one process is stopped, in s.")
    ] = 2.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first run; the next one has the next.")
    ] = None,
    marks: Annotated[str, typer.Option("-m", help="Which tests, as pytest has it.")] = "not slow",
    processes: Annotated[int, typer.Option("-n", min=1, help="Processes of each run.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a run hangs and is ended.")
    ] = 1800.0,
) -> None:
    """Repeat tests on a machine that is made slow and uneven; say which of them fail by chance."""
    first = Random().randrange(_MAX_SEED) if seed is None else seed
    folder, counts = Path(mkdtemp(prefix="tandem-steadiness-")), FailureCounts()
    typer.echo(f"Outputs of the runs: {folder}")
    tests = Run(name="the run", paths=tuple(paths), marks=marks, processes=processes)
    try:
        with busy_processes(load):
            for number in range(first, first + times):
                started = time.monotonic()
                outcomes = _execute(tests, folder / f"{number}", Random(number), stop, timeout)
                counts.add(number, outcomes)
                typer.echo(
                    f"seed {number}: {outcomes.passed} passed, {len(outcomes.failures)} failed, "
                    f"{time.monotonic() - started:.0f} s"
                )
    except KeyboardInterrupt:
        typer.echo("Ended early.")
    typer.echo("\n".join(counts.lines()))
    if counts.failing or not counts.num_runs:
        raise typer.Exit(1)


def _execute(tests: Run, file: Path, random: Random, stop_s: float, timeout_s: float) -> Outcomes:
    """One run; its output goes to `file`.log, its outcomes to `file`.json."""
    report = file.with_suffix(".json")
    with file.with_suffix(".log").open("wb") as output:
        process = subprocess.Popen(
            tests.command(report),
            cwd=CHECKOUT,
            stdout=output,
            stderr=output,
            # Ctrl-C reaches it once, from here.
            start_new_session=True,
        )
    try:
        with random_stops(process.pid, random, stop_s):
            status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return Outcomes(failures=[Failure(tests.name, f"it did not end within {timeout_s:.0f} s")])
    finally:
        _end(process)
    lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    return Outcomes.of_log(lines, status, tests.name)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a run that still goes on, as Ctrl-C does: its fixtures stop what they started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
