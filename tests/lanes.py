"""Which tests share a process when a run has several (pytest-xdist), and which go first.

Tests of one group run one after the other in one process: those of a module, and those that share
a cluster or a Ray. Two clusters with Rays in them are enough for two cores: with four at once the
probes of pods that are late take the time from which they are late (measured: a load of 170, and
nothing done after eight minutes). So the two longest groups go first, then what only computes,
and the other clusters when those are through.
"""

from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_TESTS: Final = Path(__file__).parent

SHARED: Final = (
    ("e2e/kubernetes/test_faults.py", "kubernetes: faults"),
    ("e2e/kubernetes/test_head_fault_tolerance.py", "kubernetes: faults"),
    ("e2e/kubernetes/test_autoscaling.py", "kubernetes: scaling"),
    ("e2e/kubernetes/test_scale_to_zero.py", "kubernetes: scaling"),
    ("e2e/kubernetes", "kubernetes"),
    ("integration/operator", "operator"),
    ("integration/chart/test_rights.py", "chart: rights"),
    ("e2e", "local Ray"),
    ("integration/cluster", "cluster"),
    ("integration/chart", "chart"),
)
"""Paths below tests/, and the groups of what is below them; the first that fits counts."""
FIRST: Final = ("kubernetes: faults", "kubernetes")
"""Groups that begin when the run does; the others of SHARED come last, in their order."""


def group_of(path: PurePosixPath) -> str:
    """Return the group of a test file, given relative to tests/."""
    return next((group for start, group in SHARED if path.is_relative_to(start)), str(path))


def rank_of(path: PurePosixPath) -> int:
    """Return the position of a file's group among all: FIRST, what is not listed, the others."""
    group, order = group_of(path), list(dict.fromkeys(group for _, group in SHARED))
    if group in FIRST:
        return FIRST.index(group)
    return len(FIRST) + (1 + order.index(group) if group in order else 0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups in their order."""
    items.sort(key=lambda item: rank_of(_below_tests(item)))


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups.

    xdist's own marks (xdist_group) are without effect under pytest 9.2, which keeps the node ids
    that xdist 3.8 appends them to elsewhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.partition("::")[0])
        return group_of(path.relative_to(_TESTS.name) if path.parts[0] == _TESTS.name else path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Let groups be handed out, whatever --dist says."""
    return GroupScheduling(config, log)


def _below_tests(item: pytest.Item) -> PurePosixPath:
    if item.path.is_relative_to(_TESTS):
        return PurePosixPath(item.path.relative_to(_TESTS).as_posix())
    return PurePosixPath(item.path.as_posix())
