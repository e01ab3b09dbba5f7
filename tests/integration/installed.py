"""Programs of others, each installed in a folder of its own."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

_UV: Final = Path(sys.executable).with_name("uv")


def install(folder: Path, requirements: Sequence[str], *, overrides: Sequence[str] = ()) -> Path:
    """Install packages into a new environment; skip the test where that is not possible.

    Args:
        folder: The folder of the environment.
        requirements: As pip reads them.
        overrides: Requirements that hold in place of those that packages have of each other.

    Returns:
        The folder of the commands.
    """
    python, changed = folder / "bin/python", folder / "overrides.txt"
    uv("venv", "--python", sys.executable, str(folder))
    changed.write_text("\n".join(overrides))
    uv("pip", "install", "--python", str(python), "--override", str(changed), *requirements)
    return folder / "bin"


def uv(*arguments: str) -> None:
    """Run uv; skip the test where it cannot install what is asked for."""
    done = subprocess.run([_UV, "--quiet", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{arguments[-1]} cannot be installed here: {done.stderr[-300:]}")
