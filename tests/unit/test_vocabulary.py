"""The field's words, and no others: names, docstrings, messages and the CRD.

The glossary's table of retired words is what they are compared with. A retired name is looked for
among the names that the project defines (a snake_case one as a part of longer names, too), a
retired phrase in docstrings, messages, the CRD's texts and the names of functions and classes.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tandem_operator.crd.manifest import definition
from tests.unit.docs.pages import ROOT, rows

GLOSSARY: Final = ROOT / "docs" / "design" / "glossary.md"
SHIPPED: Final = ("engine", "serve", "operator")
OTHERS: Final = ("tests", "benchmarks", "tools")
NATIVE_COMMENT: Final = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
QUESTIONS: Final = ("what", "whether", "who", "whoever", "whom", "whose")
MAX_QUESTIONS: Final = 0.01
"""Share of the docstrings that may open with one of them."""
SECTION: Final = re.compile(r"^(?:Args|Attributes|Raises):\n(?: +.*\n?|\n)+", re.MULTILINE)
ENTRY: Final = re.compile(r"^ +\*{0,2}(\w[\w.]*): (\S.*)", re.MULTILINE)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Named(NamedTuple):
    path: str
    text: str


def retired(kind: str) -> list[str]:
    """Return the retired words of one kind: `name` or `phrase`."""
    tables = [cells for header, cells in rows(GLOSSARY) if header[0] == "retired"]
    return [word.strip("`") for word, where, _ in tables if where == kind]


@cache
def modules(*folders: str) -> tuple[tuple[str, ast.Module], ...]:
    """Return path and syntax tree of every Python module in these folders."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


def native_sources() -> Iterator[Path]:
    yield from (path for ending in ("h", "cpp") for path in (ROOT / "engine").rglob(f"*.{ending}"))


def defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@cache
def names() -> tuple[Named, ...]:
    """Return each name that Python and C++ define, modules' too, with one file that has it."""
    found = {
        name: path
        for path, tree in modules(*SHIPPED, *OTHERS)
        for name in (Path(path).stem, *defined_names(tree))
    }
    for path in native_sources():
        code = NATIVE_COMMENT.sub(" ", path.read_text())
        words = (path.stem, *re.findall(r"[A-Za-z_]\w*", code))
        found |= dict.fromkeys(words, str(path.relative_to(ROOT)))
    return tuple(Named(path, name) for name, path in found.items())


@cache
def strings() -> tuple[Named, ...]:
    """Return docstrings, messages, reasons, labels and names of metrics of what is shipped."""
    return tuple(
        Named(path, " ".join(node.value.split()))
        for path, tree in modules(*SHIPPED)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def comments(path: str) -> Iterator[str]:
    source = io.StringIO((ROOT / path).read_text())
    for token in tokenize.generate_tokens(source.readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@cache
def texts() -> tuple[Named, ...]:
    """Return strings and comments of what is shipped, C++ included; of others, no strings."""
    found = [*strings(), *docstrings(*OTHERS)]
    for path, _ in modules(*SHIPPED, *OTHERS):
        # A sentence goes on in the next line.
        found.append(Named(path, " ".join(text.lstrip("# ") for text in comments(path))))
    found += [
        Named(str(path.relative_to(ROOT)), " ".join(text.replace("//", " ").split()))
        for path in native_sources()
        for text in NATIVE_COMMENT.findall(path.read_text())
    ]
    return tuple(found)


def is_of(name: str, word: str) -> bool:
    """Return True if `name` is the retired `word` or its plural; a part counts in snake_case.

    A class's name is compared with classes and constants alone: in lower case many are plain words.
    """
    bare = name.strip("_").removeprefix("Test")
    if word != word.lower():
        is_plain = bare == bare.lower()
        return not is_plain and bare.lower() in {word.lower(), f"{word.lower()}s"}
    return re.search(rf"_{word}s?_", f"_{bare.lower()}_") is not None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("SWEEPS", "sweep"),
        ("SWEEPS", "Sweep"),
        ("PLACE", "Place"),
        ("TestGate", "Gate"),
        ("_Claims", "Claims"),
        ("promises", "promise"),
        ("test_a_seat_is_free", "seat"),
    ],
)
def test_plurals_constants_and_tests_are_found(name: str, word: str) -> None:
    assert is_of(name, word)


@pytest.mark.parametrize(
    ("name", "word"),
    [("visit", "Visit"), ("LeaderElector", "Leader"), ("IN_PLACE", "Place"), ("seated", "seat")],
)
def test_plain_words_and_longer_names_are_not(name: str, word: str) -> None:
    assert not is_of(name, word)


@pytest.mark.parametrize("word", retired("name"))
def test_no_name_is_a_retired_one(word: str) -> None:
    assert not [f"{one.path}: {one.text}" for one in names() if is_of(one.text, word)]


@pytest.mark.parametrize("word", retired("name"))
def test_no_reason_label_or_metric_is_a_retired_one(word: str) -> None:
    words = (one for one in strings() if re.fullmatch(r"\w+", one.text))

    assert not [f"{one.path}: {one.text}" for one in words if is_of(one.text, word)]


@pytest.mark.parametrize("word", retired("phrase"))
def test_no_text_has_a_retired_phrase(word: str) -> None:
    phrase = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)

    assert not [f"{one.path}: {one.text}" for one in texts() if phrase.search(one.text)]
    assert not [
        f"{one.path}: {one.text}" for one in names() if phrase.search(one.text.replace("_", " "))
    ]


@pytest.mark.parametrize("kind", ["name", "phrase"])
def test_the_crd_has_none_of_them(kind: str) -> None:
    text = str(definition())
    words = [word for word in retired(kind) if kind == "phrase" or word != word.lower()]

    assert not [word for word in words if re.search(rf"\b{re.escape(word)}\b", text)]


def opens_with_a_question(text: str) -> bool:
    return text.split(maxsplit=1)[0].strip(",.:;").lower() in QUESTIONS


def docstrings(*folders: str) -> Iterator[Named]:
    """Yield the docstrings of modules, classes and functions."""
    for path, tree in modules(*folders):
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                yield Named(f"{path}: {getattr(node, 'name', 'module')}", text)


def of_attributes(*folders: str) -> Iterator[Named]:
    """Yield the texts below assignments of modules and classes, which describe them."""
    for path, tree in modules(*folders):
        for node in ast.walk(tree):
            body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
            for one, below in pairwise(body):
                match below:
                    case ast.Expr(value=ast.Constant(value=str() as text)) if isinstance(
                        one, ast.Assign | ast.AnnAssign
                    ):
                        yield Named(f"{path}:{below.lineno}", text)


def of_arguments(*folders: str) -> Iterator[Named]:
    """Yield what docstrings say of each argument, attribute and exception."""
    for one in docstrings(*folders):
        for section in SECTION.finditer(one.text):
            for name, text in ENTRY.findall(section[0]):
                yield Named(f"{one.path}: {name}", text)


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    found = [*docstrings(*SHIPPED, *OTHERS)]
    questions = [one for one in found if opens_with_a_question(one.text)]

    assert len(found) > 1000
    assert len(questions) <= MAX_QUESTIONS * len(found), questions


@pytest.mark.parametrize("lines", [of_attributes, of_arguments])
def test_lines_about_attributes_and_arguments_do_so_too(
    lines: Callable[..., Iterator[Named]],
) -> None:
    found = [*lines(*SHIPPED, *OTHERS)]

    assert len(found) > 250
    assert not [one for one in found if opens_with_a_question(one.text)]
