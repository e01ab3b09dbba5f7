"""The engines that are compared: how each is started, and what its model file is."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TANDEM: Final = "tandem"
TYPES: Final = ("bf16", "w8a8")
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine."""

    name: str
    title: str
    """Its name for people."""
    runner: str
    """Module that runs it."""
    types: Mapping[str, str]
    """Its own names of our types of weights; a type that is missing is not compared."""
    binds_by_openmp: bool = False
    """True: OpenMP pins the threads; other engines pin their own (`protocol.Load.pin`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine with the interpreter that has it."""

    kind: EngineKind
    python: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of `runner_environment`."""


KINDS: Final[Mapping[str, EngineKind]] = {
    kind.name: kind
    for kind in (
        EngineKind(
            name=TANDEM,
            title="Tandem",
            runner="benchmarks.peers.runners.tandem",
            types={"bf16": "bf16", "w8a8": "w8a8"},
        ),
        EngineKind(
            name="openvino",
            title="OpenVINO",
            runner="benchmarks.peers.runners.openvino",
            types={"bf16": "bf16", "w8a8": "int8 weights"},
        ),
        EngineKind(
            name="llamacpp",
            title="llama.cpp",
            runner="benchmarks.peers.runners.llamacpp",
            types={"bf16": "bf16", "w8a8": "q8_0"},
            binds_by_openmp=True,
        ),
        EngineKind(
            name="vllm",
            title="vLLM",
            runner="benchmarks.peers.runners.vllm",
            types={"bf16": "bf16"},
        ),
    )
}
ROOFLINE: Final = EngineKind(
    name="roofline",
    title="roofline",
    runner="benchmarks.peers.runners.roofline",
    types={},
    binds_by_openmp=True,
)


def physical_cores() -> list[int]:
    """One logical CPU of each physical core that this process may use."""
    firsts = set()
    for core in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            group = _cpus_in(siblings.read_text(encoding="ascii"))
        except (OSError, ValueError):
            group = {core}
        firsts.add(min(group & os.sched_getaffinity(0), default=core))
    return sorted(firsts)


def runner_environment(
    engine: InstalledEngine, cores: Sequence[int], *, pin: bool
) -> dict[str, str]:
    """The variables under which a runner is started: this process's, with threads set alike."""
    chosen = dict(os.environ)
    # A virtual environment that is active here is not the runner's.
    for name in ("PYTHONHOME", "VIRTUAL_ENV"):
        chosen.pop(name, None)
    chosen |= {
        # The engine of this checkout, whichever checkout the virtual environment was made for.
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engine")]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(len(cores)),
        "MKL_NUM_THREADS": str(len(cores)),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if pin and engine.kind.binds_by_openmp:
        bound = ",".join(f"{{{core}}}" for core in cores)
        chosen |= {"OMP_PROC_BIND": "true", "OMP_PLACES": bound}
    return chosen | dict(engine.environment)


def _cpus_in(text: str) -> set[int]:
    """The CPUs of a kernel's list, such as 0-1,4."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
