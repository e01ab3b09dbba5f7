"""Checks of the Containerfiles without building them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "containers").glob("*.Containerfile"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, rest) of each line, continued lines joined, comments gone."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1])
        for line in joined.split("\n")
        if line
    ]


def test_operator_and_replica_have_one() -> None:
    assert [file.name for file in FILES] == ["operator.Containerfile", "replica.Containerfile"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_everything_that_is_copied_exists(file: Path) -> None:
    copied = [
        source
        for name, rest in instructions(file)
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]

    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_extras_exist(file: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = file.read_text()
    (extras,) = re.findall(r"\.\[(.*?)\]", text)
    if extras == "${EXTRAS}":
        (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", text, re.MULTILINE)

    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_user_is_a_number_other_than_root(file: Path) -> None:
    users = [rest for name, rest in instructions(file) if name == "USER"]

    assert len(users) == 1
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[0])
