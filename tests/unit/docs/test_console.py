"""Commands that the docs show exist, with their options; none of them is run."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import pytest
import typer
from typer.main import get_command

from tandem_serve import cli
from tests.unit.docs.pages import (
    CONSOLE_LANGUAGES,
    ROOT,
    all_blocks,
    code_spans,
    console_commands,
    markdown_files,
    name_of,
    prose,
)
from tools.suite.areas import AREAS

PROGRAMS: Final = ("benchmarks", "tools.cluster")
_ENDS: Final = {"|", "&", "&&", ";", ">", "2>&1", "||"}
_OURS: Final = re.compile(r"([A-Z_]+=\S* )*(\.venv/bin/)?(tandem|python3? -m) ")
_OPTION: Final = re.compile(r"(?<![\w-])(--[a-z][\w-]*|-[a-zA-Z])(?![\w-])")
BLOCKS = all_blocks(*CONSOLE_LANGUAGES)


def words_of(line: str) -> list[str]:
    """Return the words of the first command of a line that is one of ours; none: it has none."""
    # A command in place of a value is one as well.
    line = re.sub(r".*\$\(([^)]*)\).*", r"\1", line)
    if not _OURS.match(line):
        return []
    words = shlex.split(line)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    words = words[: next((i for i, word in enumerate(words) if word in _ENDS), len(words))]
    return words if words and program(words) else []


def program(words: list[str]) -> tuple[Any, list[str]] | None:
    """Return the command that the words call, and its arguments; None: it is none of ours."""
    first = words[0].removeprefix(".venv/bin/")
    if first == "tandem":
        return tandem(), words[1:]
    if first.startswith("python") and words[1:2] == ["-m"] and len(words) > 2:
        module = words[2]
        if module.startswith(PROGRAMS):
            return command_of(module), words[3:]
    return None


@cache
def tandem() -> Any:
    """Return `tandem` with the commands of the other packages."""
    whole = typer.Typer()
    whole.registered_commands = [*cli.app.registered_commands]
    whole.registered_callback = cli.app.registered_callback
    cli.add_commands_of_others(whole)
    return get_command(whole)


@cache
def command_of(module: str) -> Any:
    return get_command(import_module(f"{module}.cli").app)


def parse(command: Any, name: str, arguments: list[str]) -> None:
    """Parse arguments as the command line would; the command itself is not called.

    Raises:
        Exception: an option, a command or a value is not known.
    """
    try:
        context = command.make_context(name, list(arguments))
    except typer.Exit:
        return
    if hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        found, chosen, left = command.resolve_command(context, rest)
        parse(chosen, found, left)


CONSOLE = [
    (str(block), line) for block in BLOCKS for line in console_commands(block) if words_of(line)
]


@pytest.mark.parametrize(("location", "line"), CONSOLE, ids=[f"{p} {line}" for p, line in CONSOLE])
def test_every_console_example_parses(location: str, line: str) -> None:
    found = program(words_of(line))

    assert found is not None, location
    parse(found[0], "example", found[1])


def mentions() -> Iterator[tuple[str, str]]:
    """Yield page and text of each inline command and each line of usage that is one of ours."""
    for page in markdown_files():
        for line in prose(page):
            for span in code_spans(line):
                yield name_of(page), span
    for block in BLOCKS:
        if block.language == "":
            for line in block.lines:
                yield str(block), line


MENTIONED = [
    (location, text)
    for location, text in mentions()
    if re.match(r"(\.venv/bin/)?(tandem |python -m (benchmarks\.|tools\.cluster))", text)
]


@pytest.mark.parametrize(("location", "text"), MENTIONED, ids=[f"{p} {t}" for p, t in MENTIONED])
def test_every_command_and_option_that_is_mentioned_exists(location: str, text: str) -> None:
    found = program(text.split())
    if found is None:
        return  # A sentence of a program's output.
    command, arguments = found
    known = names(command)
    if hasattr(command, "commands") and arguments:
        name = arguments[0].strip(",.[]")
        assert name in command.commands or name.isupper() or name.startswith("-"), location
        known = names(command.commands.get(name, command))

    # What follows another program's name is its own.
    options = _OPTION.findall(re.split(r"[;|]| jq ", " ".join(arguments))[0])
    assert set(options) <= known, location


def names(command: Any) -> set[str]:
    """Return the options of a command, and those that all have."""
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return own | {"--help", "-h", "--install-completion", "--show-completion"}


def all_texts() -> list[str]:
    """Return every inline command and every line of the console blocks."""
    lines = [line for block in BLOCKS for line in console_commands(block)]
    return lines + [text for _, text in mentions()]


def test_every_module_that_is_run_exists() -> None:
    texts = [text for _, text in mentions()] + [
        line for one in BLOCKS for line in console_commands(one)
    ]
    named = {match[1] for text in texts if (match := re.search(r"python3? -m ([a-z_.]+)", text))}

    assert named
    assert not [name for name in named if find_spec(name) is None]


def test_every_target_of_make_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {f"test-{area.name}" for area in AREAS}
    texts = [text for _, text in mentions()] + [
        line for one in BLOCKS for line in console_commands(one)
    ]
    named = {
        match[1] for text in texts if (match := re.match(r"(?:\S+=\S+ )*make ([a-z-]+)", text))
    }

    assert named
    assert named <= targets


def test_examples_were_found() -> None:
    assert len(CONSOLE) > 40
    assert len(MENTIONED) > 40
