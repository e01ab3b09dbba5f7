"""Hatchling's build hook of the kernels: for `pip install`, editable or not, and for a wheel.

Without a compiler the package is installed all the same; its engine computes in plain torch.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("engine/tandem_engine/device/cpu/native")
TARGET = "tandem_engine/device/cpu/native/lib"


class NativeKernels(BuildHookInterface):
    """Compiles the kernels into the package, or says why there are none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before files are collected; `version` is "standard" or "editable"."""
        build = _load(Path(self.root) / NATIVE / "build.py")
        try:
            libraries = build.build()
        except build.BuildFailed as error:
            print(f"Tandem is installed without its kernels: {error}.", file=sys.stderr)  # noqa: T201
            return
        if version == "editable":
            return  # they lie beside the sources
        build_data["force_include"].update(
            {str(path): f"{TARGET}/{path.name}" for path in libraries}
        )
        # One binary for every Python, of one kind of machine.
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )


def _load(path: Path) -> ModuleType:
    """Import the module at `path` without its package, which is not installed yet."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} cannot be imported; is the source tree whole?")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
