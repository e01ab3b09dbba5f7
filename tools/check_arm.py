"""`make check-arm`: the native kernels for aarch64, built by a cross compiler, run by an emulator.

    python -m tools.check_arm              build all variants, run the tests of tests/native
    python -m tools.check_arm --count      instructions that each kernel takes, variant by variant

Each variant runs on a CPU that has its instructions and none of a better one, so that one that has
slipped in ends the program. An emulator shows that results are right, and how many instructions
they take; of speed it says nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tandem_engine.device.cpu.native import build

MACHINE: Final = "aarch64"
COMPILER: Final = "aarch64-linux-gnu-g++"
EMULATOR: Final = "qemu-aarch64"
CPUS: Final = {"neon-bf16": "max", "neon-dotprod": "neoverse-n1", "portable": "cortex-a57"}
"""Variant → CPU that the emulator is."""
TESTS: Final = ("kernels", "sampling", "collectives")
_SOURCES: Final = Path(__file__).parents[1] / "tests" / "native"
_SYSROOT: Final = "/usr/aarch64-linux-gnu"


def obstacle() -> str | None:
    """Say what this machine lacks, in one sentence; None: nothing."""
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if not missing:
        return None
    return (
        f"The kernels cannot be checked for Arm without {' and '.join(missing)}; install what is "
        "missing (Debian: apt-get install g++-aarch64-linux-gnu qemu-user); until then `make "
        "test-all` skips this check."
    )


def main(arguments: Sequence[str]) -> None:
    """Run the tests of each variant, or count; exit with 1 at the first fault."""
    if arguments not in ([], ["--count"]):
        sys.exit(f"'{' '.join(arguments)}' is not known; the only option is --count.")
    if sentence := obstacle():
        sys.exit(sentence)
    with tempfile.TemporaryDirectory(prefix="tandem-arm-") as folder:
        libraries = _build(Path(folder))
        if arguments:
            _print_counts(libraries, Path(folder))
        else:
            _run_tests(libraries, Path(folder))


def _build(folder: Path) -> dict[str, Path]:
    print(f"Building the kernels for {MACHINE} …", flush=True)  # noqa: T201 - the answer
    try:
        paths = build.build(folder / "lib", machine=MACHINE, compiler=COMPILER)
    except build.BuildFailed as error:
        sys.exit(f"No kernels: {error}.")
    return dict(zip(build.variants(MACHINE), paths, strict=True))


def _run_tests(libraries: dict[str, Path], folder: Path) -> None:
    for variant, library in libraries.items():
        for test in TESTS:
            print(f"{variant}: {test} …", flush=True)  # noqa: T201
            program = _compiled(test, variant, library, folder)
            done = subprocess.run([*_emulated(variant), str(program)], check=False)
            if done.returncode:
                sys.exit(f"{test} failed on the variant {variant} (exit code {done.returncode}).")
    print("All results are right.")  # noqa: T201


def _print_counts(libraries: dict[str, Path], folder: Path) -> None:
    plugin = folder / "count_instructions.so"
    source = str(_SOURCES / "count_instructions.cpp")
    _run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-O2", source, "-o", str(plugin)])
    programs = {
        variant: _compiled("kernel_calls", variant, library, folder)
        for variant, library in libraries.items()
    }
    names = _run([*_emulated("portable"), str(programs["portable"])])[0].splitlines()
    print(f"{'thousands of instructions':40}", *(f"{name:>14}" for name in programs))  # noqa: T201
    for name in names:
        counts = [
            _count(plugin, variant, program, name, times=2)
            - _count(plugin, variant, program, name, times=1)
            for variant, program in programs.items()
        ]
        print(f"{name:40}", *(f"{count / 1000:14.1f}" for count in counts), flush=True)  # noqa: T201


def _count(plugin: Path, variant: str, program: Path, name: str, *, times: int) -> int:
    emulated = [*_emulated(variant), "-plugin", str(plugin), str(program)]
    return int(_run([*emulated, name, str(times)])[1])


def _compiled(name: str, variant: str, library: Path, folder: Path) -> Path:
    """Compile a program of tests/native as the kernels are, and link it with them."""
    program = folder / f"{name}-{variant}"
    # What is hidden in a program cannot be another library's.
    common = [flag for flag in build.COMMON_FLAGS if flag != "-fvisibility=hidden"]
    flags = [*common, *build.variants(MACHINE)[variant], f"-I{build.HERE}"]
    source = str(_SOURCES / f"{name}.cpp")
    linked = [str(library), f"-Wl,-rpath,{library.parent}", "-o", str(program)]
    _run([COMPILER, *flags, source, *linked])
    return program


def _emulated(variant: str) -> list[str]:
    return [EMULATOR, "-cpu", CPUS[variant], "-L", _SYSROOT]


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Standard output and errors of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed (exit code {done.returncode}):\n{done.stderr}")
    return done.stdout, done.stderr


if __name__ == "__main__":
    main(sys.argv[1:])
