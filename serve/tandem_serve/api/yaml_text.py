"""YAML text → its documents, or one sentence that says where it is wrong.

Strict as Kubernetes is: no key twice, no key null. Bounded, since Python is not: in depth, and in
the digits of a number.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 100
"""Levels of lists and mappings; a manifest has some ten."""
_LONGEST_NUMBER: Final = 400
"""Characters; the largest number of 64 bits has 20, the largest of floating point 309."""
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_NULL: Final = "tag:yaml.org,2002:null"


class YamlError(ValueError):
    """A text is not YAML that can be used; the message says where and why."""


def read_documents(text: str) -> list[Any]:
    """The documents of `text` that are not empty.

    Raises:
        YamlError: it is not YAML, or what it holds can be no manifest's.
    """
    return [document for document in _documents(text) if document is not None]


def _documents(text: str) -> Iterator[Any]:
    loader = None
    try:
        loader = _StrictLoader(text)
        while loader.check_data():  # type: ignore[no-untyped-call]  # types-PyYAML lacks it
            yield loader.get_data()
    except yaml.MarkedYAMLError as error:
        raise YamlError(_problem(error)) from None
    except yaml.YAMLError as error:
        raise YamlError(f"not YAML: {' '.join(str(error).split())}") from None
    except (ValueError, OverflowError):
        # Of the scanner alone: what constructors raise has become a MarkedYAMLError.
        where = _where(loader.get_mark()) if loader else ""
        raise YamlError(f"{where}an escape in this text names no character") from None


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader whose every refusal is a MarkedYAMLError."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a node, unless it lies too deep."""
        if self._depth > MAX_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML lacks it
            raise yaml.MarkedYAMLError(
                problem=f"lists and mappings lie in more than {MAX_DEPTH} others; nest them less",
                problem_mark=event.start_mark,
            )
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make the value of a node."""
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node)
        try:
            return super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            # PyYAML's constructors trust the tag, which may have been written by hand.
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{_shown(node)} is not a value of the kind {kind}; correct it, or put it "
                "in quotes",
                problem_mark=node.start_mark,
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a mapping, unless a key is there twice or is null."""
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        return super().construct_mapping(node, deep=deep)


def _check_scalar(node: yaml.ScalarNode) -> None:
    problem = ""
    if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
        problem = (
            f"a number of {len(node.value)} characters; the longest that is read has "
            f"{_LONGEST_NUMBER}"
        )
    elif any("\ud800" <= char <= "\udfff" for char in node.value):
        problem = (
            "an escape in this text is half of a pair (\\uD800 to \\uDFFF); write \\U and 8 digits"
        )
    if problem:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _check_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
        problem = ""
        if key.tag == _NULL:
            problem = "a key is null, which names no field; write a name, or put it in quotes"
        elif key.value in seen:
            problem = f"the field '{key.value}' is given twice; keep one"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        seen.add(key.value)


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"'{node.value[:40]}'"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _problem(error: yaml.MarkedYAMLError) -> str:
    said = " ".join(part for part in (error.context, error.problem) if part)
    return f"{_where(error.problem_mark or error.context_mark)}{said or 'not YAML'}"


def _where(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
