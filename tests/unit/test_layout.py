"""Invariants of the tree: no shadowed module, light imports, one version."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = ("torch", "ray", "fastapi", "numpy", "tokenizers")


def run(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_repository_on_the_path_does_not_shadow_the_standard_library() -> None:
    assert run("import operator; print(operator.add(40, 2))", PYTHONPATH=str(ROOT)) == "42"


def test_no_package_marker_stands_where_it_would_shadow() -> None:
    assert not [*ROOT.glob("operator/__init__.py"), *ROOT.glob("tests/**/operator/__init__.py")]


@pytest.mark.parametrize(
    "module",
    [
        "tandem_engine.api.engine_client",
        "tandem_engine.engine",
        "tandem_serve.api.document",
        "tandem_serve.api.manifest",
        "tandem_serve.http.admission.policy",
        "tandem_serve.cli",
    ],
)
def test_light_parts_load_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"

    assert run(code) == "[]"


def test_no_file_is_longer_than_500_lines() -> None:
    folders = ("engine", "operator", "serve", "tests")
    sources = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]
    long = [str(path) for path in sources if len(path.read_text().splitlines()) > 500]

    assert not long


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert version is not None
    assert newest is not None
    assert version[1] == newest[1]
