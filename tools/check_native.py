"""`make check-native`: the tests of the native kernels under sanitizers.

They find errors that other tests miss: invalid memory, undefined behaviour, data races.

    python -m tools.check_native                 both, one after the other
    python -m tools.check_native thread          one of them: address or thread

Each has a library of its own, of one variant, compiled with the sanitizer's flags, and the tests
run in a Python with its runtime preloaded. Python and torch are not compiled so, and nothing is
reported of them.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem_engine.device.cpu.native import build
from tandem_engine.device.cpu.native.library import runnable_variants

FOLDER_VARIABLE: Final = "TANDEM_TEST_KERNELS"
"""Folder of the kernels for tests; see tests/unit/engine/native.py."""
_TESTS: Final = ("kernels", "sampling", "forward", "thread_pool")
_COMMON: Final = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
_FAILED: Final = 66
"""Exit code of a process that a sanitizer has ended."""


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """A sanitizer: its flags, and how tests run under it."""

    flags: tuple[str, ...]
    runtimes: tuple[str, ...]
    """Libraries that are preloaded."""
    options: Mapping[str, str]
    """Variables of the runtime."""
    deselect: str
    """Tests that cannot run under it, as pytest's -k has it."""


SANITIZERS: Final = {
    "address": Sanitizer(
        flags=("-fsanitize=address,undefined",),
        runtimes=("libasan.so", "libubsan.so", "libstdc++.so.6"),
        options={
            # What Python and torch leave behind at their end is not looked for.
            "ASAN_OPTIONS": f"detect_leaks=0:exitcode={_FAILED}",
            "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:exitcode={_FAILED}",
        },
        deselect="child",
    ),
    "thread": Sanitizer(
        flags=("-fsanitize=thread",),
        runtimes=("libtsan.so", "libstdc++.so.6"),
        options={
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:"
            f"report_signal_unsafe=0:exitcode={_FAILED}"
        },
        # Under it the child of a process with threads cannot start threads.
        deselect="child or signals",
    ),
}


def main(names: Sequence[str]) -> None:
    """Run the tests under each sanitizer that is named; exit with 1 at the first fault."""
    for name in names or list(SANITIZERS):
        if name not in SANITIZERS:
            sys.exit(f"'{name}' is not a sanitizer; choose from {', '.join(SANITIZERS)}.")
        with tempfile.TemporaryDirectory(prefix="tandem-sanitized-") as folder:
            _check(name, SANITIZERS[name], Path(folder))


def _check(name: str, sanitizer: Sanitizer, folder: Path) -> None:
    variant = runnable_variants()[0]
    print(f"Compiling the {variant} kernels with the {name} sanitizer …", flush=True)  # noqa: T201
    library = folder / build.library_name(variant, build.sources_hash())
    _compile(build.HERE / "kernels.cpp", library, variant, sanitizer)
    for part in ("sampling", "collectives"):
        program = folder / part
        _compile(Path(f"tests/native/{part}.cpp"), program, variant, sanitizer)
        if done := _run(["setarch", "-R", str(program)], env={**os.environ, **sanitizer.options}):
            sys.exit(f"{part} failed under the {name} sanitizer (exit code {done}).")
    tests = [f"tests/unit/engine/test_native_{test}.py" for test in _TESTS]
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k"]
    done = _run(
        # The same addresses each time: the runtime does not support every memory layout.
        ["setarch", "-R", sys.executable, *command, f"not ({sanitizer.deselect})", *tests],
        env={
            **os.environ,
            **sanitizer.options,
            "LD_PRELOAD": ":".join(map(_runtime, sanitizer.runtimes)),
            FOLDER_VARIABLE: str(folder),
        },
    )
    if done:
        sys.exit(f"The native kernels failed under the {name} sanitizer (exit code {done}).")


def _compile(source: Path, target: Path, variant: str, sanitizer: Sanitizer) -> None:
    common = [flag for flag in build.COMMON_FLAGS if flag != "-O3"]
    flags = [*common, *_COMMON, *sanitizer.flags, *build.variants()[variant], f"-I{build.HERE}"]
    kind = ["-shared"] if target.suffix == ".so" else []
    if _run([_compiler(), *flags, *kind, str(source), "-o", str(target)]):
        sys.exit(f"The compiler failed on {source}.")


def _runtime(name: str) -> str:
    """Path of a library that comes with the compiler."""
    command = [_compiler(), f"-print-file-name={name}"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(library).is_absolute():
        sys.exit(f"{name} not found; install g++ (Debian: libgcc-12-dev).")
    return str(Path(library).resolve())


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _run(command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    main(sys.argv[1:])
