"""Messages that the docs quote are those of the code, and requests name a model of the examples.

A quoted message has `…` where the code fills in a name or a value. What stands between two of them
is looked for in the texts of the code, where each placeholder is `…` as well.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest
import yaml

from tandem_serve.api.manifest import parse_manifest
from tests.unit.docs.pages import ROOT, code_blocks, markdown_files, name_of, rows

HTTP: Final = ROOT / "docs" / "reference" / "http.md"
TROUBLESHOOTING: Final = ROOT / "docs" / "guides" / "troubleshooting.md"
PACKAGES: Final = ("engine", "serve", "operator")
COLUMNS: Final = ("message", "in the way")
"""Columns whose cells are messages."""
_PLACEHOLDER: Final = "…"
_FIELD: Final = re.compile(r"\{[a-z_]*\}")
_MODEL: Final = re.compile(r"""["']?model["']?\s*[=:]\s*"([^"]*)\"""")


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Yield every text of a module but its docstrings, with `…` for its placeholders."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text) if id(node) not in docstrings:
                yield _FIELD.sub(_PLACEHOLDER, text)
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else _PLACEHOLDER
                    for part in parts
                )


@cache
def texts_of_the_code() -> str:
    """Return all texts of the packages, a line each."""
    sources = (path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    found = {text for path in sources for text in texts_of(ast.parse(path.read_text("utf-8")))}
    return "\n".join(" ".join(text.split()) for text in sorted(found))


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
    parts = [part.strip(" ,;:.'") for part in message.split(_PLACEHOLDER)]

    unknown = [part for part in parts if part not in texts_of_the_code()]

    assert not unknown, page


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
