"""The table of what broke in other engines: each row names a test, and the test is there."""

import ast
from typing import Final

import pytest

from tests.unit.docs.pages import ROOT, code_spans, rows

PAGE: Final = ROOT / "docs" / "design" / "decisions" / "micro-batches.md"
HEADER: Final = "elsewhere"
CLASSES: Final = 20
"""Rows at least: one for each fault that other engines have met."""


def table() -> list[tuple[str, ...]]:
    return [cells for header, cells in rows(PAGE) if header[0] == HEADER]


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_table_is_whole() -> None:
    assert len(table()) >= CLASSES
    for hazard, _, prevented, tests in table():
        assert hazard
        assert prevented
        assert len(code_spans(tests)) == 1, hazard


@pytest.mark.parametrize("cells", table(), ids=[cells[0] for cells in table()])
def test_each_fault_has_its_test(cells: tuple[str, ...]) -> None:
    (named,) = code_spans(cells[-1])
    path, _, function = named.partition("::")

    assert function in functions_of(path)
