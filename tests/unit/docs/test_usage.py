"""Lines of usage name every option of their command, with its default, and no other."""

import re
import tomllib
from typing import Any, Final

import pytest
from typer.main import get_command

from tandem_operator import main as operator_main
from tests.unit.docs.kinds import BlockKind, blocks_of
from tests.unit.docs.pages import ROOT, Block
from tests.unit.docs.test_console import tandem

_OPTION: Final = re.compile(r"(?<![\w-])(--[a-z][\w-]*|-[a-zA-Z])(?![\w-])")
_DEFAULT: Final = re.compile(r"(--[a-z][\w-]*|-[a-z]) ([0-9][0-9.]*)\b")
_OF_ALL: Final = {"--help", "-h", "--install-completion", "--show-completion"}


def command_of(block: Block) -> Any:
    """Return the command that a line of usage is about."""
    program, *names = block.text.split()
    if program == "tandem-operator":
        return get_command(operator_main._app)
    command = tandem()
    while (group := getattr(command, "commands", {})) and names:
        command = group[names.pop(0)]
    return command


def options_of(command: Any) -> list[Any]:
    found = [param for param in command.params if param.param_type_name == "option"]
    return [param for param in found if not _OF_ALL.intersection(param.opts)]


@pytest.mark.parametrize("block", blocks_of(BlockKind.USAGE), ids=str)
def test_usage_names_every_option_and_no_other(block: Block) -> None:
    named = set(_OPTION.findall(block.text))
    options = options_of(command_of(block))

    assert all(named.intersection(param.opts) for param in options), [p.opts for p in options]
    assert named <= {name for param in options for name in param.opts}


@pytest.mark.parametrize("block", blocks_of(BlockKind.USAGE), ids=str)
def test_usage_shows_the_defaults(block: Block) -> None:
    shown = dict(_DEFAULT.findall(block.text))
    defaults = {
        name: str(param.default)
        for param in options_of(command_of(block))
        for name in param.opts
        if name in shown
    }

    assert shown == defaults


@pytest.mark.parametrize("block", blocks_of(BlockKind.USAGE), ids=str)
def test_usage_names_every_argument(block: Block) -> None:
    arguments = [p for p in command_of(block).params if p.param_type_name == "argument"]

    names = [str(p.metavar or p.name).strip("[]").upper() for p in arguments]
    known = {"SOURCE": "IN", "TARGET": "OUT"}
    assert all(known.get(name, name) in block.text for name in names), names


@pytest.mark.parametrize("block", blocks_of(BlockKind.PROJECT), ids=str)
def test_parts_of_pyproject_are_there(block: Block) -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert is_part(tomllib.loads(block.text), whole)


def is_part(part: Any, whole: Any) -> bool:
    """Return True when every value of `part` stands at the same key of `whole`."""
    if not isinstance(part, dict):
        return bool(part == whole)
    return all(key in whole and is_part(value, whole[key]) for key, value in part.items())
