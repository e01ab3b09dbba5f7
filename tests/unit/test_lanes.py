"""Which process runs a test: the listed paths exist, and the more special come first."""

from pathlib import Path, PurePosixPath

import pytest

from tests import lanes

TESTS = Path(lanes.__file__).parent
PATHS = [path for path, _ in lanes.SHARED]


@pytest.mark.parametrize("path", PATHS)
def test_a_listed_path_exists(path: str) -> None:
    assert (TESTS / path).exists()


@pytest.mark.parametrize("index", range(len(PATHS)))
def test_no_path_hides_behind_one_above_it(index: int) -> None:
    path = PurePosixPath(PATHS[index])

    assert not [above for above in PATHS[:index] if path.is_relative_to(above)]


def test_a_file_that_is_not_listed_is_a_group_of_its_own() -> None:
    path = PurePosixPath("unit/test_lanes.py")

    assert lanes.group_of(path) == str(path)


def test_two_clusters_begin_then_what_computes_then_the_others() -> None:
    paths = ["integration/operator/a.py", "unit/a.py", "e2e/kubernetes/a.py", "e2e/a.py"]
    paths.append("e2e/kubernetes/test_faults.py")

    ordered = sorted(paths, key=lambda path: lanes.rank_of(PurePosixPath(path)))

    assert ordered == [
        "e2e/kubernetes/test_faults.py",
        "e2e/kubernetes/a.py",
        "unit/a.py",
        "integration/operator/a.py",
        "e2e/a.py",
    ]


def test_the_faults_run_beside_the_rest_of_kubernetes() -> None:
    groups = {
        lanes.group_of(PurePosixPath(f"e2e/kubernetes/{name}.py"))
        for name in ("test_faults", "test_life")
    }

    assert len(groups) == 2
