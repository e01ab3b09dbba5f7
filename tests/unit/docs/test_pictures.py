"""Pictures and the loop on the architecture page show modules and calls that there are."""

import ast
import inspect
import re
import tomllib
from importlib.util import find_spec
from typing import Any, Final

import pytest

from tandem_engine.api.step import Runner
from tandem_engine.scheduler.scheduler import Scheduler
from tests.unit.docs.kinds import BlockKind, blocks_of
from tests.unit.docs.pages import ROOT, Block, code_spans, rows

ARCHITECTURE: Final = ROOT / "docs" / "design" / "architecture.md"
PURE: Final = "the pure core touches no framework, clock, chance or environment"
DATA: Final = "plain data: the api packages know no framework"
OBJECTS: Final[dict[str, type]] = {"scheduler": Scheduler, "runner": Runner}


def contract(name: str) -> set[str]:
    """Return the modules of an import contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    return set(next(one["source_modules"] for one in contracts if one["name"] == name))


def layers() -> dict[str, set[str]]:
    """Layer → its modules, as the picture shows them."""
    found: dict[str, set[str]] = {}
    packages: list[str] = []
    layer = ""
    for line in picture().lines:
        boxes = line.split("│")[1:6:2]
        if "tandem_" in line:
            packages = re.findall(r"tandem_\w+", line)
        elif packages and len(boxes) == len(packages):
            name, mark, _ = line.rpartition("│")[2].partition(":")
            layer = name.strip() if mark else layer
            for package, box in zip(packages, boxes, strict=True):
                found.setdefault(layer, set()).update(f"{package}.{one}" for one in box.split())
    return found


def picture() -> Block:
    return next(one for one in blocks_of(BlockKind.PICTURE) if one.page == ARCHITECTURE)


def test_the_modules_of_the_picture_are_there() -> None:
    named = {module for modules in layers().values() for module in modules}

    assert len(named) > 30
    assert not [module for module in named if find_spec(module) is None]


def test_the_core_is_what_the_import_contract_keeps_pure() -> None:
    found = layers()

    assert found["core"] <= contract(PURE)
    assert not found["shell"] & contract(PURE)
    assert found["leaf"] == contract(DATA)


def test_whole_packages_that_are_pure_are_in_the_core() -> None:
    whole = {module for module in contract(PURE) if module.count(".") == 1}

    assert whole <= layers()["core"]


def modules_of_tables() -> list[tuple[str, str]]:
    """Return package and file of each module that a table of the page explains."""
    return [
        (header[0].removeprefix("module of ").removeprefix("the "), name)
        for header, cells in rows(ARCHITECTURE)
        if header[0].startswith("module of ")
        for name in code_spans(cells[0])
    ]


@pytest.mark.parametrize(("package", "name"), modules_of_tables())
def test_the_modules_of_the_tables_are_there(package: str, name: str) -> None:
    assert (ROOT / package / f"tandem_{package}" / name).exists()


def test_the_tables_explain_every_package() -> None:
    explained = set(modules_of_tables())
    folders = {
        (package, f"{path.name}/")
        for package in ("engine", "serve", "operator")
        for path in (ROOT / package / f"tandem_{package}").iterdir()
        if (path / "__init__.py").is_file()
    }

    assert folders <= explained


def loop() -> Block:
    return next(one for one in blocks_of(BlockKind.PYTHON) if one.page == ARCHITECTURE)


def calls() -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(loop().text)) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("call", calls(), ids=ast.unparse)
def test_the_loop_calls_what_there_is(call: ast.Call) -> None:
    function: Any = call.func
    method = getattr(OBJECTS[function.value.id], function.attr)

    assert len(inspect.signature(method).bind(object(), *call.args).args) == 1 + len(call.args)


@pytest.mark.parametrize("block", blocks_of(BlockKind.PICTURE), ids=str)
def test_files_in_pictures_lie_beside_their_page(block: Block) -> None:
    names = re.findall(r"\b\w+\.py\b", block.text)

    assert block.page == ARCHITECTURE or names
    assert all((block.page.parent / name).is_file() for name in names)
