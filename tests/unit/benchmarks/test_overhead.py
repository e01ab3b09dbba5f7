"""benchmarks.overhead: what its figures mean, and what it says to wrong usage."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.overhead.cli import app
from benchmarks.overhead.profiler import Profiler
from benchmarks.overhead.report import Figures, write_json

PARTS = {"schedule": 0.001, "forward": 0.006, "sample": 0.002, "hand over": 0.001}


def figures(**given: float) -> Figures:
    return Figures(
        model="S",
        num_rows=1,
        sampling="greedy",
        async_scheduling=None,
        parts_s=PARTS,
        **{"forward_wall_s": 0.006, "period_s": 0.008, **given},
    )


def test_all_but_the_forward_pass_is_beside_it() -> None:
    assert figures().beside_s == pytest.approx(0.004)
    assert figures().share == pytest.approx(0.4)


def test_idle_is_the_time_between_forward_passes() -> None:
    assert figures().idle_share == pytest.approx(0.25)
    assert figures(forward_wall_s=0.009).idle_share == 0.0


def test_a_watch_counts_each_moment_of_a_turn_once() -> None:
    class Loop:
        def turn(self) -> None:
            self.part()

        def part(self) -> None:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass

    loop, profiler = Loop(), Profiler(1)
    profiler.time_calls(loop, "part", "schedule")
    profiler.time_loop(loop, "turn")
    loop.turn()

    [part], [rest] = profiler.taken["schedule"], profiler.taken["hand over"]
    assert part >= 0.02
    assert rest < part


def test_the_figures_are_written_with_the_machine(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "out.json", [figures()], settings={"rows": 1})
    told = json.loads((tmp_path / "new" / "out.json").read_text(encoding="utf-8"))

    assert told["figures"][0]["beside_share"] == pytest.approx(0.4)
    assert told["machine"]["num_cores"] >= 1


@pytest.mark.parametrize("option", ["--model", "--sampling", "--async-scheduling"])
def test_an_unknown_name_is_refused_with_those_that_there_are(option: str) -> None:
    done = CliRunner().invoke(app, [option, "nonsense"])

    assert done.exit_code == 2
    assert "'nonsense' is not one of" in done.output
