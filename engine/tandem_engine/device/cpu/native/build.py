"""Compile the kernels: one shared library a variant, kept for the next install.

`hatch_build.py` calls this when the package is installed or a wheel is made; by hand it is
`python -m tandem_engine.device.cpu.native.build`. It uses the standard library alone: a build
has nothing else.

The threads are the library's own (thread_pool.h), and not OpenMP's: those of libgomp spin for
milliseconds while they wait, also where others want the core.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
LIBRARIES: Final = HERE / "lib"
"""The package's libraries; git ignores the folder."""

COMMON_FLAGS: Final = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)
_AVX512: Final = (
    "-march=x86-64-v4",
    "-mavx512bf16",
    "-mavx512vnni",
    "-mprefer-vector-width=512",
)
X86_FLAGS: Final = {
    "amx": (*_AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512": _AVX512,
    "avx2": ("-march=x86-64-v3",),
}
ARM_FLAGS: Final = {
    "neon-bf16": ("-march=armv8.2-a+dotprod+bf16+i8mm",),
    "neon-dotprod": ("-march=armv8.2-a+dotprod",),
}
_FLAGS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "x86_64": X86_FLAGS,
    "AMD64": X86_FLAGS,
    "aarch64": ARM_FLAGS,
}
"""Kind of machine → variant → flags."""
_NEEDED_GCC: Final = {"x86_64": 11, "AMD64": 11, "aarch64": 10}
_UNKNOWN_FLAG: Final = re.compile(
    r"unrecognized command[- ]line option|(bad|invalid|unknown) (value|feature)"
)
"""Complaints of g++ about a flag that it does not know."""
LINK_FLAGS: Final = (
    "-shared",
    "-pthread",
    "-static-libstdc++",
    "-static-libgcc",
    "-Wl,--exclude-libs,ALL",
)


class BuildFailed(Exception):
    """The kernels cannot be built; the engine runs without, slower."""


def variants(machine: str = platform.machine()) -> dict[str, tuple[str, ...]]:
    """Variant → compiler flags, best first, of a kind of machine, as `uname -m` names it."""
    return {**_FLAGS.get(machine, {}), "portable": ()}


def sources_hash(folder: Path = HERE) -> str:
    """Hash of the sources; a library of others does not fit the Python beside them."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.h"), *folder.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def library_name(variant: str, sources: str) -> str:
    """File name of a library."""
    return f"kernels-{variant}-{sources}.so"


def cache_folder() -> Path:
    """Folder of libraries that are kept for the next install: $XDG_CACHE_HOME/tandem/kernels."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "tandem" / "kernels"


def build(
    target: Path = LIBRARIES,
    *,
    cache: Path | None = None,
    machine: str = platform.machine(),
    compiler: str | None = None,
) -> list[Path]:
    """Bring the libraries of all variants to `target`, and remove older ones there.

    Args:
        target: A folder; created if missing.
        cache: Folder of libraries compiled before, and of new ones; None: `cache_folder()`.
        machine: The kind of machine that the compiler compiles for.
        compiler: Name of a g++; None: what CXX says, or g++.

    Raises:
        BuildFailed: There is no compiler, or it fails.
    """
    compiler = _path_of(compiler or os.environ.get("CXX", "g++"), machine)
    kept = (cache or cache_folder()) / _build_hash(compiler, machine)
    names = [library_name(variant, sources_hash()) for variant in variants(machine)]
    target.mkdir(parents=True, exist_ok=True)
    if not all((kept / name).is_file() for name in names):
        with tempfile.TemporaryDirectory(prefix="tandem-kernels-") as folder:
            made = _compile_all(compiler, Path(folder), machine)
            _install(made, target)
            _keep(made, kept)
    else:
        _install([kept / name for name in names], target)
    for old in set(target.glob("kernels-*.so")) - {target / name for name in names}:
        old.unlink(missing_ok=True)
    return [target / name for name in names]


def needed_gcc(machine: str = platform.machine()) -> int:
    """The oldest g++ that knows the flags of all variants."""
    return _NEEDED_GCC.get(machine, min(_NEEDED_GCC.values()))


def _path_of(compiler: str, machine: str) -> str:
    path = shutil.which(compiler)
    if path is None:
        raise BuildFailed(
            f"there is no compiler '{compiler}'; install g++ {needed_gcc(machine)} or newer, or "
            "set CXX to one"
        )
    return path


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - a compiler that the user has named
    version = done.stdout.partition("\n")[0]
    if done.returncode or "clang" in done.stdout:
        raise BuildFailed(
            f"{compiler} is not g++, for which the kernels are written; set CXX to one"
        )
    return version


def _build_hash(compiler: str, machine: str) -> str:
    """Sources, flags and compiler: what a library follows from."""
    parts = [sources_hash(), _version(compiler), machine, *COMMON_FLAGS, *LINK_FLAGS]
    for variant, flags in variants(machine).items():
        parts += [variant, *flags]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile_all(compiler: str, folder: Path, machine: str) -> list[Path]:
    """Compile all variants side by side, then link each."""
    sources = sources_hash()
    libraries = {name: folder / library_name(name, sources) for name in variants(machine)}
    running = [
        _start(
            [compiler, *COMMON_FLAGS, *flags, "-c", str(HERE / "kernels.cpp"), "-o", f"{path}.o"]
        )
        for path, flags in zip(libraries.values(), variants(machine).values(), strict=True)
    ]
    # All are waited for before the first complaint is raised: none outlives the folder.
    for said in [_end(process) for process in running]:
        _check(said, compiler, machine)
    for path in libraries.values():
        said = _end(_start([compiler, *LINK_FLAGS, f"{path}.o", "-o", str(path)]))
        _check(said, compiler, machine)
    return list(libraries.values())


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 - as above


def _end(process: "subprocess.Popen[str]") -> str:
    """The compiler's errors; empty if there are none."""
    _, complaint = process.communicate()
    return complaint.strip()[-2000:] or "no output" if process.returncode else ""


def _check(complaint: str, compiler: str, machine: str) -> None:
    if unknown := next(filter(_UNKNOWN_FLAG.search, complaint.splitlines()), None):
        least = needed_gcc(machine)
        raise BuildFailed(
            f"{_version(compiler)} does not know a flag of the kernels ({unknown}); install g++ "
            f"{least} or newer, and set CXX to it where it is not the default, as in "
            f"CXX=g++-{least}"
        )
    if complaint:
        raise BuildFailed(f"the compiler failed on the kernels:\n{complaint}")


def _install(paths: Sequence[Path], folder: Path) -> None:
    """Copy files atomically: no process ever reads half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        half = folder / f".{path.name}.{os.getpid()}"
        shutil.copyfile(path, half)
        half.replace(folder / path.name)


def _keep(paths: Sequence[Path], folder: Path) -> None:
    try:
        _install(paths, folder)
    except OSError as error:
        # Without a writable home the next install takes half a minute longer.
        print(f"Tandem's kernels are not kept in {folder}: {error}.", file=sys.stderr)  # noqa: T201


def main() -> None:
    """Build into the package."""
    try:
        for path in build():
            print(path)  # noqa: T201 - the answer
    except BuildFailed as error:
        sys.exit(f"No kernels: {error}.")


if __name__ == "__main__":
    main()
