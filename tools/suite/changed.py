"""The areas that a change asks for; pure."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from tools.suite.areas import AREAS, Area, area_of, below

_ALL: Final = (
    "Makefile",
    "constraints.txt",
    "hatch_build.py",
    "pyproject.toml",
    "tests/cluster_fixture.py",
    "tests/conftest.py",
    "tests/e2e/harness.py",
    "tools/suite",
)
"""A change of these asks for every area."""


def areas_of_change(paths: Iterable[str]) -> list[Area]:
    """Return the areas that some changed files ask for, in the order of AREAS.

    A file of the code asks for each area that names it or a folder above it; a test for its own
    area; what tests share for the areas of the tests below its folder.
    """
    names = {name for path in paths for name in _names(PurePosixPath(path))}
    return [area for area in AREAS if area.name in names]


def _names(path: PurePosixPath) -> set[str]:
    if below(path, _ALL):
        return {area.name for area in AREAS}
    if path.parts[0] == "tests" and path.name.startswith("test_"):
        return {area_of(path.relative_to("tests")).name}
    if path.parts[0] == "tests":
        folder = str(path.parent.relative_to("tests"))
        return {area.name for area in AREAS if any(_meets(folder, root) for root in area.paths)}
    return {area.name for area in AREAS if below(path, area.code)}


def _meets(folder: str, root: str) -> bool:
    """Return True when tests below `root` may use what lies in `folder`."""
    return PurePosixPath(root).is_relative_to(folder) or PurePosixPath(folder).is_relative_to(root)
