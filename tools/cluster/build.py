"""Builds the Go parts once, into the cache: whole or not at all."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tools.cluster import modules
from tools.cluster.errors import ClusterError
from tools.cluster.modules import ALL_MODULES, MODULES, Module
from tools.cluster.paths import GO_MODULES, Cache
from tools.cluster.progress import Progress, Tell

_FLAGS: Final = ("-buildvcs=false", "-mod=readonly")
_TAIL_LINES: Final = 12
_DRAFT: Final = ".draft-"


@dataclass(frozen=True, slots=True)
class Built:
    """Folders of built modules."""

    folders: Mapping[str, Path]

    @property
    def programs(self) -> dict[str, Path]:
        """Every program by its name."""
        return {
            program: self.folders[module.name] / "bin" / program
            for module in ALL_MODULES
            if module.name in self.folders
            for program in module.programs.values()
        }


def go_version() -> str:
    """Output of `go env GOVERSION` in our modules; it may fetch a newer toolchain there.

    Raises:
        OSError: there is no `go`.
    """
    done = subprocess.run(
        ["go", "env", "GOVERSION"],
        cwd=GO_MODULES / "pause",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def build_modules(cache: Cache, progress: Progress, chosen: Sequence[Module] = MODULES) -> Built:
    """Return these Go parts, built if they are not there yet.

    Raises:
        ClusterError: a build fails.
    """
    version = go_version()
    folders = {module.name: cache.parts / _folder_name(module, version) for module in chosen}
    for module in chosen:
        folder = folders[module.name]
        if folder.is_dir():
            continue
        with locked(cache.lock), progress.phase(f"build {module.name} from Go modules") as tell:
            make_whole(folder, partial(_build, module, tell))
    return Built(folders)


def _folder_name(module: Module, version: str) -> str:
    source = GO_MODULES / module.name
    files = {file.name: file.read_bytes() for file in source.iterdir() if file.is_file()}
    return f"{module.name}-{modules.key(files, version, _flags(module))}"


def _flags(module: Module) -> tuple[str, ...]:
    return (*_FLAGS, *modules.tag_flags(module))


def _build(module: Module, tell: Tell, draft: Path) -> None:
    source = GO_MODULES / module.name
    version = modules.version_of((source / "go.mod").read_text("utf-8"), module.source)
    tell(version)
    programs = draft / "bin"
    programs.mkdir()
    linker = modules.linker_flags(module, version)
    arguments = (*_flags(module), "-ldflags", linker, "-o", f"{programs}/", "tool")
    _go("build", *arguments, module=module)
    for built, name in module.programs.items():
        (programs / built).rename(programs / name)
    if module.copies:
        _copy(module, draft)


def _copy(module: Module, draft: Path) -> None:
    """Keep what the module cache may one day not have any more."""
    folder = _go("list", "-m", "-f", "{{.Dir}}", module.source, module=module).strip()
    for source, target in module.copies.items():
        shutil.copytree(Path(folder) / source, draft / target, copy_function=shutil.copyfile)
        (draft / target).chmod(0o755)


def _go(*arguments: str, module: Module) -> str:
    done = subprocess.run(
        ["go", *arguments],
        cwd=GO_MODULES / module.name,
        env=os.environ | {"CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout
    tail = "\n  ".join(done.stderr.splitlines()[-_TAIL_LINES:])
    raise ClusterError(f"`go {arguments[0]}` of {module.name} failed:\n  {tail}")


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock `file`, which the kernel takes back however this process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def make_whole(target: Path, fill: Callable[[Path], None]) -> None:
    """Make the folder `target` by filling a draft next to it; the caller holds the lock."""
    if target.exists():  # another process was faster
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with drafted(target.parent) as draft:
        fill(draft)
        draft.rename(target)


@contextmanager
def drafted(parent: Path) -> Iterator[Path]:
    """A folder in `parent` that is gone afterwards; the caller holds the lock."""
    for leftover in parent.glob(f"{_DRAFT}*"):  # of a process that was killed
        shutil.rmtree(leftover)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=parent))
    try:
        draft.chmod(0o755)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
