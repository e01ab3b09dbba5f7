"""Every fenced block of the docs has a kind, and every kind the tests that it names."""

from pathlib import Path

import pytest

from tests.unit.docs.kinds import TESTS, BlockKind, blocks_of, kind_of
from tests.unit.docs.pages import Block, all_blocks, markdown_files, name_of, prose


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_every_block_has_a_kind(block: Block) -> None:
    assert kind_of(block) in TESTS


@pytest.mark.parametrize("kind", BlockKind)
def test_every_kind_has_blocks_and_tests(kind: BlockKind) -> None:
    modules = [Path(__file__).parent / f"{name}.py" for name in TESTS[kind]]

    assert blocks_of(kind)
    assert modules
    assert all(module.is_file() for module in modules)


@pytest.mark.parametrize("page", markdown_files(), ids=name_of)
def test_no_fence_is_overlooked(page: Path) -> None:
    assert not [line for line in prose(page) if "```" in line]


def test_kinds_that_are_checked_on_one_page_are_on_no_other() -> None:
    """Their tests read the blocks of that page alone."""
    pages = {
        BlockKind.PYTHON: {
            "docs/design/architecture.md",
            "docs/guides/programs.md",
            "docs/reference/http.md",
        },
        BlockKind.ALERTS: {"docs/reference/metrics.md"},
        BlockKind.QUERIES: {"docs/reference/metrics.md"},
    }

    assert {kind: {name_of(one.page) for one in blocks_of(kind)} for kind in pages} == pages
