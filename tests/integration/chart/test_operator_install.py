"""Installation by `pip install tandem[operator]`, as in the operator's image."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")


def uv(*args: str | Path) -> None:
    subprocess.run([UV, "--quiet", *args], check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the operator from this checkout."""
    venv = tmp_path_factory.mktemp("operator") / "venv"
    python = venv / "bin/python"
    uv("venv", "--python", sys.executable, venv)
    constraints = ROOT / "constraints.txt"
    uv("pip", "install", "--python", python, "--constraints", constraints, f"{ROOT}[operator]")
    return venv


@pytest.mark.slow
def test_the_operator_starts_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "bin/tandem-operator", "--help"],
        cwd=tmp_path,
        env={"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "--config" in done.stdout


def test_neither_torch_nor_ray_comes_with_it(installed: Path) -> None:
    packages = {path.name for path in installed.glob("lib/python*/site-packages/*")}

    assert "tandem_operator" in packages
    assert packages.isdisjoint({"torch", "ray", "numpy", "fastapi", "nvidia"})


def test_every_module_of_the_operator_can_be_imported(installed: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, tandem_operator\n"
        "for module in pkgutil.walk_packages(tandem_operator.__path__, 'tandem_operator.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
    )

    subprocess.run([installed / "bin/python", "-c", code], cwd=tmp_path, env={}, check=True)


def test_it_is_small(installed: Path) -> None:
    size = sum(file.stat().st_size for file in installed.rglob("*") if not file.is_symlink())

    assert size < 150e6
