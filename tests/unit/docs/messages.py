"""The texts of the code, with `…` for each placeholder, as the docs quote them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.unit.docs.pages import ROOT

PLACEHOLDER: Final = "…"
PACKAGES: Final = ("engine", "serve", "operator")
_FIELD: Final = re.compile(r"\{[a-z_]*\}")


@cache
def texts_of_the_code() -> str:
    """Return all texts of the packages, a line each."""
    sources = (path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    found = {text for path in sources for text in _texts_of(ast.parse(path.read_text("utf-8")))}
    return "\n".join(" ".join(text.split()) for text in sorted(found))


def unknown_parts(message: str) -> list[str]:
    """Return the parts of a quoted message, between two `…`, that no text of the code has."""
    parts = [part.strip(" ,;:.'") for part in message.split(PLACEHOLDER)]
    return [part for part in parts if part not in texts_of_the_code()]


def filled(message: str, *values: str) -> str:
    """Return a message of the code with a value for each `…`.

    Raises:
        AssertionError: the code has no such message.
    """
    assert not unknown_parts(message), message
    for value in values:
        message = message.replace(PLACEHOLDER, value, 1)
    return message


def _texts_of(tree: ast.Module) -> Iterator[str]:
    """Yield every text of a module but its docstrings, with `…` for its placeholders."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text) if id(node) not in docstrings:
                yield _FIELD.sub(PLACEHOLDER, text)
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER
                    for part in parts
                )
