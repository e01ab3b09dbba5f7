"""Outcomes are those of real runs of pytest; the report ends with what failed, and the counts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.suite.outcomes import Failure, Outcomes
from tools.suite.report import Part, report

MIXED = """
import pytest

def test_good(): pass

@pytest.mark.parametrize("word", ["a", "b"])
def test_bad(word): assert word == "c", "a sentence\\nof two lines"

def test_that_cannot_run(): pytest.skip("there is no device")

@pytest.fixture
def broken(): raise OSError("no room")

def test_whose_fixture_fails(broken): pass

@pytest.mark.xfail(strict=True)
def test_known(): assert False
"""


def run(folder: Path, text: str, *options: str) -> Outcomes:
    """Run pytest on one file."""
    (folder / "test_it.py").write_text(text)
    log = folder / "log"
    line = [sys.executable, "-m", "pytest", f"--report-log={log}", "-p", "no:cacheprovider"]
    done = subprocess.run([*line, *options, "test_it.py"], cwd=folder, check=False)
    return Outcomes.of_log(log.read_text().splitlines(), done.returncode, "it")


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["one process", "a worker"])
def test_every_kind_of_outcome_is_counted(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = run(tmp_path, MIXED, *options)

    assert found.passed == 1
    assert found.file_seconds.keys() == {"test_it.py"}
    assert found.file_seconds["test_it.py"] > 0
    assert found.skips == {"there is no device": 1}
    assert found.failures == [
        Failure("test_it.py::test_bad[a]", "AssertionError: a sentence"),
        Failure("test_it.py::test_bad[b]", "AssertionError: a sentence"),
        Failure("test_it.py::test_whose_fixture_fails", "OSError: no room"),
    ]


def test_a_file_that_cannot_be_read_has_failed(tmp_path: Path) -> None:
    (failure, end) = run(tmp_path, "import nothing_of_this_name").failures

    assert failure == Failure(
        "test_it.py", "E   ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )
    assert end.reason == "pytest ended with status 2, see above"


def test_a_run_without_tests_has_failed(tmp_path: Path) -> None:
    assert run(tmp_path, "").failures == [Failure("it", "no test was found; its paths hold none")]


def test_a_run_that_was_killed_has_failed() -> None:
    found = Outcomes.of_log([], -9, "it")

    assert found.failures == [Failure("it", "pytest ended with status -9, see above")]


def test_a_status_that_no_test_explains_is_a_failure() -> None:
    assert Outcomes.of_log([], 1, "it").failures
    assert Outcomes.of_log([], 0, "it").failures


def test_the_report_ends_with_failures_how_to_repeat_one_and_the_counts() -> None:
    failed = Outcomes(passed=2, failures=[Failure("tests/test_a.py::test_b[x y]", "it broke")])
    parts = [Part("unit", 61.4, Outcomes(passed=40, skipped=1, skips={"no device": 1}))]

    lines = list(report([*parts, Part("integration", 5, failed)]))

    assert lines[1:] == [
        "unit                        1:01       40        0        1",
        "integration                 0:05        2        1        0",
        "all                         1:06       42        1        1",
        "skipped 1: no device",
        "",
        "FAILED tests/test_a.py::test_b[x y]",
        "       it broke",
        "Repeat one: .venv/bin/pytest 'tests/test_a.py::test_b[x y]'",
        "42 passed, 1 failed, 1 skipped",
    ]


def test_the_report_names_the_files_that_take_longest() -> None:
    first = Outcomes(file_seconds={f"{number}.py": float(number) for number in range(12)})
    part = Part("unit", 1, first.with_second_try(Outcomes(file_seconds={"7.py": 100.0})))

    lines = list(report([part, Part("checks", 1, Outcomes())]))

    start = lines.index("longest of unit, with what their tests need:")
    assert lines[start + 1 : start + 3] == ["   107.0 s  7.py", "    11.0 s  11.py"]
    assert lines[start + 10 : start + 12] == ["     2.0 s  2.py", lines[-1]]


def test_a_report_without_failures_has_only_times_and_counts() -> None:
    *_, last = lines = list(report([Part("unit", 1, Outcomes(passed=3))]))

    assert len(lines) == 4
    assert last == "3 passed, 0 failed, 0 skipped"


def test_a_test_that_passes_on_its_second_try_is_named_with_its_first_reason() -> None:
    first = Outcomes(passed=3, failures=[Failure("a.py::x", "late"), Failure("a.py::y", "wrong")])
    second = Outcomes(
        passed=1, passed_ids={"a.py::x"}, failures=[Failure("a.py::y", "wrong again")]
    )

    merged = first.with_second_try(second)

    assert merged.passed == 4
    assert merged.failures == [Failure("a.py::y", "wrong again")]
    assert merged.second_tries == [Failure("a.py::x", "late")]
    assert "passed on a second try: a.py::x" in list(report([Part("Kubernetes", 1, merged)]))


@pytest.mark.parametrize(
    "second",
    [
        Outcomes(failures=[Failure("it", "pytest ended with status 4, see above")]),
        Outcomes(skipped=1, skips={"no cluster can run here": 1}),
    ],
    ids=["it breaks", "all is skipped"],
)
def test_a_test_that_did_not_pass_on_its_second_try_has_failed(second: Outcomes) -> None:
    first = Outcomes(failures=[Failure("a.py::x", "late"), Failure("b.py", "no such module")])

    merged = first.with_second_try(second)

    assert [*first.failures] == [each for each in merged.failures if each.node_id != "it"]
    assert not merged.second_tries


def test_a_log_that_is_cut_off_is_read_up_to_there() -> None:
    whole = {"$report_type": "TestReport", "when": "call", "outcome": "passed"}
    lines = [
        json.dumps(whole | {"nodeid": "a.py::x", "duration": 0.1, "longrepr": None}),
        '{"nodeid": "a.p',
    ]

    found = Outcomes.of_log(lines, -9, "it")

    assert found.passed == 1
    assert found.failures == [Failure("it", "pytest ended with status -9, see above")]


def test_a_run_that_ends_well_in_the_middle_has_failed(tmp_path: Path) -> None:
    text = "import os\n\ndef test_x(): pass\n\ndef test_y(): os._exit(0)\n"

    found = run(tmp_path, text)

    assert found.failures == [Failure("it", "pytest ended before its tests, see above")]


def test_a_test_counts_once_by_its_worst_phase(tmp_path: Path) -> None:
    text = (
        "import pytest\n\n@pytest.fixture\ndef it():\n    yield\n    raise OSError('no room')\n\n"
        "def test_x(it): pass\n\ndef test_y(it): raise KeyError\n"
    )

    found = run(tmp_path, text)

    assert found.passed == 0
    assert found.failed_tests() == ["test_it.py::test_x", "test_it.py::test_y"]
    assert found.failures[0].reason == "OSError: no room"
