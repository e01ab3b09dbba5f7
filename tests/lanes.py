"""Which tests share a process when a run has several (pytest-xdist), and which go first.

Tests of one group run one after the other in one process: those of a module, and those that share
a cluster or a Ray. The groups that mostly wait come first, so that the others compute meanwhile.
"""

from pathlib import Path, PurePosixPath
from typing import Final

import pytest

_TESTS: Final = Path(__file__).parent

SHARED: Final = (
    # Longest first.
    ("e2e/kubernetes/test_faults.py", "kubernetes: faults"),
    ("e2e/kubernetes/test_head_fault_tolerance.py", "kubernetes: faults"),
    ("e2e/kubernetes", "kubernetes"),
    ("integration/operator", "operator"),
    ("integration/chart/test_rights.py", "chart: rights"),
    ("e2e", "local Ray"),
    ("integration/cluster", "cluster"),
    ("integration/chart", "chart"),
)
"""Paths below tests/, and the groups of what is below them; the first that fits counts."""


def group_of(path: PurePosixPath) -> str:
    """Return the group of a test file, given relative to tests/."""
    return next((group for start, group in SHARED if path.is_relative_to(start)), str(path))


def rank_of(path: PurePosixPath) -> int:
    """Return the position of a file's group among all; those that are not listed come last."""
    starts = [start for start, _ in SHARED]
    return next((at for at, start in enumerate(starts) if path.is_relative_to(start)), len(starts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its group, and put the long groups in front."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(_below_tests(item))))
    items.sort(key=lambda item: rank_of(_below_tests(item)))


def _below_tests(item: pytest.Item) -> PurePosixPath:
    if item.path.is_relative_to(_TESTS):
        return PurePosixPath(item.path.relative_to(_TESTS).as_posix())
    return PurePosixPath(item.path.as_posix())
