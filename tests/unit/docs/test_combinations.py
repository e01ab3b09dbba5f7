"""The table of features beside micro-batches: each that works has its case, and the case is run."""

import ast
from typing import Final

from tests.unit.docs.pages import ROOT, code_spans, prose, rows

PAGE: Final = ROOT / "docs" / "guides" / "micro-batches.md"
TESTS: Final = ROOT / "tests" / "integration" / "test_micro_batch_combinations.py"
CASES: Final = "COMBINATIONS"
TEST: Final = "test_cut_steps_say_what_whole_ones_say"


def table() -> list[tuple[str, ...]]:
    return [cells for header, cells in rows(PAGE) if header[0] == "with" and "case" in header[-1]]


def cases() -> set[str]:
    """The names of the cases in the module of tests, which is not imported: it needs torch."""
    tree = ast.parse(TESTS.read_text("utf-8"))
    (found,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == CASES
    )
    assert isinstance(found, ast.Dict)
    return {str(key.value) for key in found.keys if isinstance(key, ast.Constant)}


def test_every_feature_that_works_has_a_case_and_every_case_is_told_of() -> None:
    told = [code_spans(reason) for _, verdict, reason in table() if verdict.startswith("works")]

    assert all(told)
    assert {name for row in told for name in row} == cases()


def test_every_feature_works_or_is_refused_with_the_reason() -> None:
    verdicts = {verdict.partition(",")[0].partition(";")[0] for _, verdict, _ in table()}

    assert verdicts == {"works", "refused"}
    assert all(reason for *_, reason in table())


def test_the_page_names_the_test_that_runs_the_cases() -> None:
    functions = {
        node.name: node
        for node in ast.parse(TESTS.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    text = "\n".join(prose(PAGE))

    assert f"`{TEST}` in `{TESTS.relative_to(ROOT)}`" in text
    decorators = "".join(ast.unparse(one) for one in functions[TEST].decorator_list)
    assert CASES in decorators
