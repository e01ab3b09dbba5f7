"""The field's words, and no others: names, docstrings, messages and the CRD.

The glossary's table of retired words is what they are compared with. A retired name is looked for
among the names that the project defines (a snake_case one as a part of longer names, too), a
retired phrase in docstrings, messages, the CRD's texts and the names of functions and classes.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
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
PRONOUNS: Final = frozenset({"one", "found", "told"})
"""Names that stand for anything: an isvc, a pod, a row say more."""
MAX_QUESTIONS: Final = 0.01
"""Share of the docstrings that may open with one of them."""
SECTION: Final = re.compile(r"^(?:Args|Attributes|Raises):\n(?: +.*\n?|\n)+", re.MULTILINE)
ENTRY: Final = re.compile(r"^ +\*{0,2}(\w[\w.]*): (\S.*)", re.MULTILINE)
# As the tokenizer of Python finds them, at a hundredth of its time.
COMMENT: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|(#[^\n]*)",
    re.DOTALL,
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Named(NamedTuple):
    path: str
    text: str


class Source(NamedTuple):
    """The words of a Python module; its syntax tree is not kept, which is large."""

    path: str
    names: frozenset[str]
    strings: tuple[str, ...]
    docstrings: tuple[Named, ...]
    of_attributes: tuple[Named, ...]
    comments: str


def retired(kind: str) -> list[str]:
    """Return the retired words of one kind: `name` or `phrase`."""
    tables = [cells for header, cells in rows(GLOSSARY) if header[0] == "retired"]
    return [word.strip("`") for word, where, _ in tables if where == kind]


@cache
def sources(folder: str) -> tuple[Source, ...]:
    """Return what every Python module in a folder says."""
    return tuple(source_of(path) for path in sorted((ROOT / folder).rglob("*.py")))


def source_of(file: Path) -> Source:
    code, path = file.read_text(), str(file.relative_to(ROOT))
    nodes = [*ast.walk(ast.parse(code))]
    return Source(
        path,
        names=frozenset((file.stem, *defined_names(nodes))),
        strings=tuple(
            " ".join(node.value.split())
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ),
        docstrings=tuple(
            Named(f"{path}: {getattr(node, 'name', 'module')}", text)
            for node in nodes
            if isinstance(node, Documented) and (text := ast.get_docstring(node))
        ),
        of_attributes=tuple(attribute_texts(path, nodes)),
        # A sentence goes on in the next line.
        comments=" ".join(text.lstrip("# ") for text in COMMENT.findall(code) if text),
    )


def native_sources() -> Iterator[Path]:
    yield from (path for ending in ("h", "cpp") for path in (ROOT / "engine").rglob(f"*.{ending}"))


def defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def attribute_texts(path: str, nodes: Iterable[ast.AST]) -> Iterator[Named]:
    """Yield the texts below assignments of modules and classes, which describe them."""
    for node in nodes:
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
        for statement, below in pairwise(body):
            match below:
                case ast.Expr(value=ast.Constant(value=str() as text)) if isinstance(
                    statement, ast.Assign | ast.AnnAssign
                ):
                    yield Named(f"{path}:{below.lineno}", text)


def modules(*folders: str) -> Iterator[Source]:
    """Yield what the Python modules of some folders say."""
    return (source for folder in folders for source in sources(folder))


@cache
def names() -> tuple[Named, ...]:
    """Return each name that Python and C++ define, modules' too, with one file that has it."""
    defined = {name: source.path for source in modules(*SHIPPED, *OTHERS) for name in source.names}
    for path in native_sources():
        code = NATIVE_COMMENT.sub(" ", path.read_text())
        words = (path.stem, *re.findall(r"[A-Za-z_]\w*", code))
        defined |= dict.fromkeys(words, str(path.relative_to(ROOT)))
    return tuple(Named(path, name) for name, path in defined.items())


@cache
def strings() -> tuple[Named, ...]:
    """Return docstrings, messages, reasons, labels and names of metrics of what is shipped."""
    return tuple(
        Named(source.path, text) for source in modules(*SHIPPED) for text in source.strings
    )


@cache
def texts() -> tuple[Named, ...]:
    """Return strings and comments of what is shipped, C++ included; of others, no strings."""
    return (
        *strings(),
        *docstrings(*OTHERS),
        *(Named(source.path, source.comments) for source in modules(*SHIPPED, *OTHERS)),
        *(
            Named(str(path.relative_to(ROOT)), " ".join(text.replace("//", " ").split()))
            for path in native_sources()
            for text in NATIVE_COMMENT.findall(path.read_text())
        ),
    )


def is_of(name: str, word: str) -> bool:
    """Return True if `name` is the retired `word` or its plural; a part counts in snake_case.

    A class's name is compared with classes and constants alone: in lower case many are plain words.
    """
    if word.lower() not in name.lower():
        return False  # nearly all: 25,000 names are compared with 80 words
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


def test_names_say_what_they_hold() -> None:
    assert not [
        f"{source.path}: {name}"
        for source in modules(*SHIPPED, "benchmarks", "tools")
        for name in PRONOUNS & source.names
    ]
    quoted = re.compile(f"`({'|'.join(PRONOUNS)})`")
    assert not [each.path for each in docstrings(*SHIPPED) if quoted.search(each.text)]


@pytest.mark.parametrize("word", retired("name"))
def test_no_reason_label_or_metric_is_a_retired_one(word: str) -> None:
    words = (string for string in strings() if re.fullmatch(r"\w+", string.text))

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
    return (text for source in modules(*folders) for text in source.docstrings)


def of_attributes(*folders: str) -> Iterator[Named]:
    """Yield what is said below attributes of modules and classes."""
    return (text for source in modules(*folders) for text in source.of_attributes)


def of_arguments(*folders: str) -> Iterator[Named]:
    """Yield what docstrings say of each argument, attribute and exception."""
    for docstring in docstrings(*folders):
        for section in SECTION.finditer(docstring.text):
            for name, text in ENTRY.findall(section[0]):
                yield Named(f"{docstring.path}: {name}", text)


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
