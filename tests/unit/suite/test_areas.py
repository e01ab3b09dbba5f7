"""The areas: every test file has one, what they name exists, and the pages say the same."""

import re
from pathlib import Path, PurePosixPath

import pytest

from tools.suite.areas import AREAS, STAGES, Area, area_of, below
from tools.suite.run import CHECKOUT, files_of

TESTS = CHECKOUT / "tests"
FILES = sorted(file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))
by_name = pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)


@by_name
def test_what_an_area_names_exists(area: Area) -> None:
    paths = [TESTS / path for path in area.paths] + [CHECKOUT / path for path in area.code]

    assert [path for path in paths if not path.exists()] == []


def test_every_test_file_is_in_one_area() -> None:
    files = [file for area in AREAS for file in files_of(area)]

    assert sorted(files) == [f"tests/{file}" for file in FILES]


@by_name
def test_every_area_has_tests(area: Area) -> None:
    assert files_of(area)


def test_every_test_file_is_below_a_stage() -> None:
    assert [file for file in FILES if not _in_a_stage(file, "not cluster")] == []


def test_every_test_with_a_kubernetes_is_below_a_stage_or_slow() -> None:
    with_cluster = [file for file in FILES if _has_mark(file, "cluster")]
    fast = [file for file in with_cluster if not _has_mark(file, "slow")]

    assert fast
    assert [file for file in fast if not _in_a_stage(file, "and cluster")] == []


def _in_a_stage(file: str, marks: str) -> bool:
    stages = (stage for stage in STAGES if marks in stage.marks)
    return any(below(PurePosixPath(file), stage.paths) for stage in stages)


def _has_mark(file: str, mark: str) -> bool:
    """True if all tests of a file have it."""
    marks = re.search(
        r"^pytestmark = (\[.*?\]|.*?)$", (TESTS / file).read_text(), re.MULTILINE | re.DOTALL
    )
    return bool(marks and re.search(rf"\bpytest\.mark\.{mark}\b", marks[1]))


def test_what_a_stage_leaves_out_is_an_area() -> None:
    left_out = {path for stage in STAGES for path in stage.left_out}

    assert left_out <= {path for area in AREAS for path in area.paths}


def test_the_most_exact_path_has_a_file() -> None:
    assert area_of(PurePosixPath("unit/docs/test_pages.py")).name == "docs"
    assert area_of(PurePosixPath("unit/engine/test_pool.py")).name == "unit"


def test_a_file_without_an_area_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"tests/elsewhere/test_x.py belongs to no area"):
        area_of(PurePosixPath("elsewhere/test_x.py"))


@by_name
def test_contributing_describes_the_area(area: Area) -> None:
    rows = Path(CHECKOUT, "CONTRIBUTING.md").read_text().splitlines()
    code = ", ".join(f"`{path}`" for path in area.code)

    assert f"| `make test-{area.name}` | {area.minutes} | {area.holds} | {code} |" in rows
