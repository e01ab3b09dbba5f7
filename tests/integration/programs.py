"""The programs of docs/guides/programs.md, as that page installs and calls them."""

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tests.unit.docs.pages import ROOT, code_blocks, console_commands

PAGE: Final = ROOT / "docs/guides/programs.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a client, or the service, says of a run."""

    num_requests: int
    num_tokens: int
    """Tokens of all answers."""
    ttft_ms: float
    tpot_ms: float
    """Mean time to the first token, and between two tokens of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, as the page shows it."""

    requirements: tuple[str, ...]
    command: tuple[str, ...]
    files: dict[str, str]
    """Name → text of the files that the command reads."""

    @property
    def name(self) -> str:
        """Name of its command."""
        return self.command[0]

    @property
    def overrides(self) -> tuple[str, ...]:
        """Requirements of its packages that are others here: no client computes on a device."""
        left_out = [f"{name} ; python_version < '3'" for name in _LEFT_OUT.get(self.name, ())]
        return (*left_out, f"torch=={version('torch').partition('+')[0]}")

    def figures(self, folder: Path) -> Figures:
        """Return what it says in its files below a folder."""
        return READERS[self.name](folder)


_LEFT_OUT: Final = {
    "vllm": (
        *("PyNvVideoCodec", "fastsafetensors", "flashinfer-cubin", "flashinfer-python"),
        *("humming-kernels", "instanttensor", "numba", "nvidia-cudnn-frontend"),
        *("nvidia-cutlass-dsl", "opencv-python-headless", "quack-kernels", "tilelang"),
        *("tokenspeed-mla", "torchaudio", "torchcodec", "torchvision"),
    ),
}


def _read(folder: Path, name: str) -> Any:
    (path,) = folder.rglob(name)
    return json.loads(path.read_text())


def _guidellm(folder: Path) -> Figures:
    (benchmark,) = _read(folder, "guidellm.json")["benchmarks"]
    means = {
        name: benchmark["metrics"][name]["successful"]["mean"]
        for name in ("output_token_count", "time_to_first_token_ms", "inter_token_latency_ms")
    }
    num = benchmark["metrics"]["request_totals"]["successful"]
    return Figures(
        num_requests=num,
        num_tokens=round(num * means["output_token_count"]),
        ttft_ms=means["time_to_first_token_ms"],
        tpot_ms=means["inter_token_latency_ms"],
    )


def _evalscope(folder: Path) -> Figures:
    summary = _read(folder, "benchmark_summary.json")
    num = summary["Success Requests"]
    return Figures(
        num_requests=num,
        num_tokens=round(num * summary["Avg Output Tokens"]),
        ttft_ms=summary["Avg TTFT (ms)"],
        tpot_ms=summary["Avg TPOT (ms)"],
    )


def _aiperf(folder: Path) -> Figures:
    profile = _read(folder, "profile_export_aiperf.json")
    return Figures(
        num_requests=round(profile["request_count"]["avg"]),
        num_tokens=round(profile["total_output_tokens"]["avg"]),
        ttft_ms=profile["time_to_first_token"]["avg"],
        tpot_ms=profile["inter_token_latency"]["avg"],
    )


def _vllm(folder: Path) -> Figures:
    result = _read(folder, "vllm.json")
    return Figures(
        num_requests=result["completed"],
        num_tokens=result["total_output_tokens"],
        ttft_ms=result["mean_ttft_ms"],
        tpot_ms=result["mean_tpot_ms"],
    )


def _ais_bench(folder: Path) -> Figures:
    totals = _read(folder, "synthetic.json")
    (path,) = folder.rglob("synthetic.csv")
    lines = path.read_text().splitlines()
    rows = {row["Performance Parameters"]: row for row in csv.DictReader(lines)}
    return Figures(
        num_requests=totals["Success Requests"]["total"],
        num_tokens=totals["Total Generated Tokens"]["total"],
        ttft_ms=float(rows["TTFT"]["Average"].removesuffix(" ms")),
        tpot_ms=float(rows["TPOT"]["Average"].removesuffix(" ms")),
    )


READERS: Final[dict[str, Callable[[Path], Figures]]] = {
    "guidellm": _guidellm,
    "evalscope": _evalscope,
    "aiperf": _aiperf,
    "vllm": _vllm,
    "ais_bench": _ais_bench,
}
"""Command → what reads its figures."""


def _programs() -> list[Program]:
    programs, settings = [], ""
    for block in code_blocks(PAGE):
        if block.language == "python":  # The file of the next command.
            settings = block.text
            continue
        install, command = map(shlex.split, console_commands(block))
        programs.append(
            Program(
                requirements=tuple(install[2:]),
                command=tuple(command),
                files={word: settings for word in command if re.fullmatch(r"\w+\.py", word)},
            )
        )
    return programs


PROGRAMS: Final = _programs()
CLIENTS: Final = [program for program in PROGRAMS if program.name in READERS]
"""Those that measure."""
FRAMEWORKS: Final = [program for program in PROGRAMS if program.name == "python"]
"""Libraries, by a script that asks questions."""
REQUIREMENTS: Final = {each for program in PROGRAMS for each in program.requirements}
