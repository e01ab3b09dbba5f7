"""The kind of each fenced block of the docs, which says which test holds it against the code."""

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import cache
from typing import Any, Final

import yaml

from tandem_serve.api.spec import KIND
from tests.unit.docs.pages import CONSOLE_LANGUAGES, Block, all_blocks


class BlockKind(Enum):
    """Kinds of fenced blocks."""

    COMMANDS = auto()
    SERVICE = auto()
    """InferenceServices, and parts of one."""
    VALUES = auto()
    """Values of the chart."""
    OBJECTS = auto()
    """Other objects of Kubernetes."""
    ALERTS = auto()
    QUERIES = auto()
    USAGE = auto()
    OUTPUT = auto()
    """Lines that a command prints."""
    JSON = auto()
    PYTHON = auto()
    PROJECT = auto()
    """A part of pyproject.toml."""
    PICTURE = auto()


TESTS: Final[Mapping[BlockKind, tuple[str, ...]]] = {
    BlockKind.COMMANDS: ("test_console", "test_programs"),
    BlockKind.SERVICE: ("test_manifests",),
    BlockKind.VALUES: ("test_manifests", "test_objects"),
    BlockKind.OBJECTS: ("test_objects",),
    BlockKind.ALERTS: ("test_metrics",),
    BlockKind.QUERIES: ("test_metrics",),
    BlockKind.USAGE: ("test_usage",),
    BlockKind.OUTPUT: ("test_outputs",),
    BlockKind.JSON: ("test_http_examples",),
    BlockKind.PYTHON: ("test_http_examples", "test_pictures", "test_programs"),
    BlockKind.PROJECT: ("test_usage",),
    BlockKind.PICTURE: ("test_pictures",),
}
"""Modules that hold the blocks of each kind against the code."""

_USAGE: Final = re.compile(r"tandem(-operator)?( [a-z]+)* [-A-Z\[(]")
_PICTURE: Final = re.compile("[►▼]")
_VALUES: Final = frozenset({"settings", "image", "metrics", "networkPeers", "dashboards"})


def documents(block: Block) -> list[Any]:
    """Return the YAML documents of a block."""
    return list(yaml.safe_load_all(block.text))


def _kind_of_yaml(block: Block) -> BlockKind | None:
    found = documents(block)
    if not all(isinstance(one, dict) for one in found):
        return None
    if all(one.get("kind") == KIND or [*one] == ["spec"] for one in found):
        return BlockKind.SERVICE
    if all("apiVersion" in one for one in found):
        return BlockKind.OBJECTS
    if all([*one] == ["groups"] for one in found):
        return BlockKind.ALERTS
    return BlockKind.VALUES if all(set(one) <= _VALUES for one in found) else None


def _kind_of_text(block: Block) -> BlockKind | None:
    if _PICTURE.search(block.text):
        return BlockKind.PICTURE
    if len(block.lines) == 1 and _USAGE.match(block.text):
        return BlockKind.USAGE
    return BlockKind.OUTPUT


_KINDS: Final[Mapping[str, Callable[[Block], BlockKind | None]]] = {
    **dict.fromkeys(CONSOLE_LANGUAGES, lambda _: BlockKind.COMMANDS),
    "yaml": _kind_of_yaml,
    "json": lambda _: BlockKind.JSON,
    "python": lambda _: BlockKind.PYTHON,
    "promql": lambda _: BlockKind.QUERIES,
    "toml": lambda _: BlockKind.PROJECT,
    "": _kind_of_text,
}


@cache
def kind_of(block: Block) -> BlockKind:
    """Return the kind of a block.

    Raises:
        AssertionError: it has none, so no test would hold it against the code.
    """
    find = _KINDS.get(block.language)
    kind = find(block) if find else None
    assert kind, f"{block}: no test holds this block against the code; give it a kind, and a check"
    return kind


def blocks_of(kind: BlockKind) -> list[Block]:
    """Return the blocks of one kind on all pages."""
    return [block for block in all_blocks() if kind_of(block) is kind]
