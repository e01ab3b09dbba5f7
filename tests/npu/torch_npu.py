"""The real torch_npu, importable without CANN: its schemas and meta kernels, and no device.

The package's libraries want some 90 symbols of CANN when they are loaded, and call none of them
before there is a card. So a library that has them all, as functions that return 0, is enough.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
import torch

from tests.integration.installed import uv

_CANN: Final = "libascendcl.so"
_OTHERS: Final = re.compile(r"lib(hccl|acl_|ge_|graph).*\.so")
"""Libraries of CANN that only have to be there."""
_LOOKED_UP: Final = ("aclrtSetOpWaitTimeout",)
"""Functions of CANN that torch_npu looks up by name when it makes a process group."""
_DATA: Final = ("_ZTV", "_ZTI", "_ZTS", "_ZTT")
"""Beginnings of the names of C++'s tables, which are no functions."""
_FROM_ELSEWHERE: Final = re.compile(r"_?Py|__tls_get_addr")
"""Symbols of the program and of the dynamic linker."""
_KEYS: Final = (b"pinned_reserve_s", b"per_process_memo")
"""Beginnings of two settings that the allocators of CUDA and of torch_npu both announce. torch from
the index has CUDA's, and refuses the second one; torch for an NPU has not."""


class TorchNpu:
    """An installed torch_npu, and what makes it load.

    Args:
        folder: Where it goes.
        has_cann: False: leave CANN out, as on a machine without it.
    """

    def __init__(self, folder: Path, *, has_cann: bool = True) -> None:
        if shutil.which("gcc") is None or shutil.which("nm") is None:
            pytest.skip("there is no gcc that could make a library in CANN's place")
        self._site, self._cann = folder / "site", folder / "cann"
        release = version("torch").partition("+")[0]
        # A copy, since a link would have the changes below made in uv's cache.
        options = ("--link-mode=copy", "--no-deps", "--target", str(self._site))
        uv("pip", "install", *options, f"torch_npu=={release}")
        self._tell_allocators_apart()
        self._cann.mkdir()
        if has_cann:
            self._stand_in_for_cann()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that can import it."""
        paths = [str(self._site), *filter(None, sys.path)]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_LIBRARY_PATH": str(self._cann),
            # Else torch imports it by itself, before a test can.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }

    def run(self, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a module of the tests with it."""
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def _libraries(self) -> list[Path]:
        package = self._site / "torch_npu"
        found = [*package.glob("_C*.so"), *package.glob("lib/*.so")]
        return [path for path in found if "atb" not in path.name]  # loaded when it is used

    def _tell_allocators_apart(self) -> None:
        library = self._site / "torch_npu/lib/libtorch_npu.so"
        code = library.read_bytes()
        for key in _KEYS:
            code = code.replace(key, key.upper())
        library.write_bytes(code)

    def _stand_in_for_cann(self) -> None:
        libraries = self._libraries()
        torch_lib = Path(torch.__file__).parent / "lib"
        there = _symbols([*libraries, *torch_lib.glob("*.so*"), *_c_libraries()], "--defined-only")
        undefined = _symbols(libraries, "--undefined-only") - there
        names = sorted(name for name in undefined if not _FROM_ELSEWHERE.match(name))
        source = self._cann / "cann.c"
        source.write_text("\n".join(map(_definition, [*names, *_LOOKED_UP])))
        _link(self._cann / _CANN, source)
        source.write_text("")
        for name in filter(_OTHERS.fullmatch, set().union(*map(_needed, libraries))):
            _link(self._cann / name, source)


def _definition(name: str) -> str:
    return f"char {name}[512];" if name.startswith(_DATA) else f"int {name}(void) {{ return 0; }}"


def _link(library: Path, source: Path) -> None:
    soname = f"-Wl,-soname,{library.name}"
    _output(
        "gcc", "-w", "-fno-builtin", "-shared", "-fPIC", soname, "-o", str(library), str(source)
    )


def _symbols(libraries: Iterable[Path], kind: str) -> set[str]:
    """Names without versions, and without weak ones that are not there."""
    lines = [
        line.split()
        for library in libraries
        for line in _output("nm", "-D", kind, str(library)).splitlines()
    ]
    return {words[-1].partition("@")[0] for words in lines if words and words[-2] not in "wv"}


def _c_libraries() -> list[Path]:
    """The libraries of C and C++ that this process has."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    names = set(re.findall(r"(/\S+/(?:libc|libm|libstdc\+\+|libgcc_s|libdl)[-.]\S*)", maps))
    return [Path(name) for name in names]


def _needed(library: Path) -> list[str]:
    return re.findall(r"NEEDED.*\[(.+)\]", _output("readelf", "-d", "-W", str(library)))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
