"""Messages that the docs quote are those of the code, and requests name a model of the examples.

A quoted message has `…` where the code fills in a name or a value. What stands between two of them
is looked for in the texts of the code, where each placeholder is `…` as well.
"""

import re
from typing import Final

import pytest
import yaml

from tandem_serve.api.manifest import parse_manifest
from tests.unit.docs.messages import unknown_parts
from tests.unit.docs.pages import ROOT, code_blocks, markdown_files, name_of, rows

HTTP: Final = ROOT / "docs" / "reference" / "http.md"
TROUBLESHOOTING: Final = ROOT / "docs" / "guides" / "troubleshooting.md"
COLUMNS: Final = ("message", "in the way")
"""Columns whose cells are messages."""
_MODEL: Final = re.compile(r"""["']?model["']?\s*[=:]\s*"([^"]*)\"""")


def messages() -> list[tuple[str, str]]:
    """Return page and text of each message that a table of the docs quotes."""
    return [
        (name_of(page), cell)
        for page in markdown_files()
        for header, cells in rows(page)
        for column, cell in zip(header, cells, strict=True)
        if column in COLUMNS
    ]


MESSAGES: Final = messages()


@pytest.mark.parametrize(("page", "message"), MESSAGES, ids=[text for _, text in MESSAGES])
def test_every_message_in_a_table_is_one_of_the_code(page: str, message: str) -> None:
    assert not unknown_parts(message), page


def test_messages_were_found() -> None:
    pages = [page for page, _ in MESSAGES]

    assert pages.count(name_of(TROUBLESHOOTING)) > 15


def test_requests_of_the_http_page_ask_for_a_model_of_the_examples() -> None:
    served = {
        parse_manifest(path.read_text("utf-8"), folder=path.parent).model_name
        for path in (ROOT / "examples").rglob("*.yaml")
        if yaml.safe_load(path.read_text("utf-8"))["kind"] == "InferenceService"
    }
    requested = {
        name for block in code_blocks(HTTP) for name in _MODEL.findall("\n".join(block.lines))
    }

    assert requested
    assert requested <= served
