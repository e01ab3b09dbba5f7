"""Runs pytest for a stage or an area: its output goes to the terminal, its outcomes come back."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from tandem_serve.commands.common import Progress
from tools.cluster import ClusterError, prepare, unavailable
from tools.suite.areas import STAGES, Area, area_of
from tools.suite.outcomes import Failure, Outcomes
from tools.suite.report import Part

CHECKOUT: Final = Path(__file__).resolve().parents[2]
_TESTS: Final = CHECKOUT / "tests"
_WRITE_NOTHING: Final = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of pytest."""

    name: str
    paths: tuple[str, ...]
    """Relative to the checkout."""
    marks: str = ""
    """The tests of these to run, as pytest's -m has it; empty: all."""
    left_out: tuple[str, ...] = ()
    """Folders of these that are not run."""
    processes: int = 1
    has_second_try: bool = False
    draws: bool = False
    """True: property tests draw new examples (tests/conftest.py)."""

    def command(self, log: Path) -> list[str]:
        """The command line; outcomes go into `log`."""
        line = [sys.executable, "-m", "pytest", "-q", f"--report-log={log}"]
        if self.draws:
            line.append("--hypothesis-profile=drawn")
        if self.marks:
            line += ["-m", self.marks]
        line += [f"--ignore={path}" for path in self.left_out]
        if self.processes > 1:
            line += [f"--numprocesses={self.processes}", "--dist=loadfile"]
            line.append("--no-loadscope-reorder")  # unit tests before those that stand on them
        return [*line, *self.paths]


def stage_runs() -> list[Run]:
    """Return the runs of `make test`."""
    return [
        Run(
            name=stage.name,
            paths=tuple(f"tests/{path}" for path in stage.paths),
            marks=stage.marks,
            left_out=tuple(f"tests/{path}" for path in stage.left_out),
            processes=stage.processes,
            has_second_try=stage.has_second_try,
        )
        for stage in STAGES
    ]


def area_run(area: Area) -> Run:
    """Return the run of an area, with whole ranges and what takes long."""
    return Run(name=area.name, paths=files_of(area), processes=area.processes, draws=True)


def files_of(area: Area) -> tuple[str, ...]:
    """Return the test files of an area."""
    files = sorted(_TESTS.rglob("test_*.py"))
    return tuple(
        str(file.relative_to(CHECKOUT))
        for file in files
        if area_of(PurePosixPath(file.relative_to(_TESTS))) is area
    )


def changed_files(base: str) -> list[str]:
    """Return the files that differ from the commit where this branch left `base`, new ones too.

    Raises:
        subprocess.CalledProcessError: git does not know `base`.
    """
    start = _git("merge-base", base, "HEAD").strip()
    # A file that was renamed asks for the areas of both names.
    changed = _git("diff", "--name-only", "--no-renames", "-z", start)
    new = _git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (changed + new).split("\0") if path})


def check() -> Part:
    """Run the checks, which are no tests: they pass or fail as one."""
    started = time.monotonic()
    status = subprocess.run(
        ["make", "--no-print-directory", "check"], cwd=CHECKOUT, check=False
    ).returncode
    outcomes = Outcomes()
    if status:
        outcomes.failures.append(Failure("make check", "a check failed, see above"))
    return Part("checks", time.monotonic() - started, outcomes)


def build_parts() -> Part:
    """Build what clusters are made of, so that no test waits for a compiler.

    Where no cluster can run nothing is built, and the tests that need one say why.
    """
    started = time.monotonic()
    outcomes = Outcomes()
    if not unavailable():
        try:
            with Progress(verbose=False) as progress:
                prepare(progress)
        except ClusterError as error:
            outcomes.failures.append(Failure("the parts of a cluster", str(error)))
    return Part("parts of a cluster", time.monotonic() - started, outcomes)


def execute(run: Run) -> Part:
    """Run pytest to its end; what failed once more, where the run says so."""
    started = time.monotonic()
    outcomes = _pytest(run)
    failed = outcomes.failed_tests()
    if run.has_second_try and failed and not outcomes.is_interrupted:
        outcomes = outcomes.with_second_try(_pytest(replace(run, paths=tuple(failed))))
    return Part(run.name, time.monotonic() - started, outcomes)


def _pytest(run: Run) -> Outcomes:
    # A shell has what it runs in the background ignore Ctrl-C, and pytest would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with TemporaryDirectory(prefix="tandem-suite-") as folder:
        log = Path(folder, "log")
        # The processes of a stage, and later stages, read the tests that the first has compiled.
        kept = {name: value for name, value in os.environ.items() if name != _WRITE_NOTHING}
        process = subprocess.Popen(run.command(log), cwd=CHECKOUT, env=kept)
        status, is_interrupted = _wait_for(process)
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    outcomes = Outcomes.of_log(lines, status, run.name)
    outcomes.is_interrupted = is_interrupted
    return outcomes


def _wait_for(process: "subprocess.Popen[bytes]") -> tuple[int, bool]:
    """Wait for pytest; return its status, and True if the user has ended it.

    It ends what its fixtures have started, however long that takes: a second Ctrl-C ends the wait.
    """
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()
        process.send_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        return process.wait(), ended.is_set()
    except KeyboardInterrupt:
        # The terminal has sent it to pytest as well.
        return process.wait(), True
    finally:
        signal.signal(signal.SIGTERM, before)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    return done.stdout
