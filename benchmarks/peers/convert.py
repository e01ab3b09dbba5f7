"""The models in the peers' formats, each made once with the peer's own tools, beside the first."""

import subprocess
from pathlib import Path
from typing import Final

from benchmarks.peers.engines import ROOT, InstalledEngine
from benchmarks.serving.errors import BenchmarkError

_FORMATS: Final = {"bf16": "fp16", "w8a8": "int8"}
"""optimum's names. It has no bf16 on disk; OpenVINO computes in bf16 all the same (`runners`)."""
_SHOWN: Final = 300


def model_for(engine: InstalledEngine, checkpoint: Path, weights: str, *, log: Path) -> Path:
    """The file or folder that an engine loads for a checkpoint; converted where it is missing.

    Raises:
        BenchmarkError: the engine's tool is missing or fails.
    """
    match engine.kind.name:
        case "openvino":
            return _openvino(engine.python, checkpoint, weights, log)
        case "llamacpp":
            return _gguf(engine.python, checkpoint, weights, log)
        case _:
            return checkpoint


def _openvino(python: Path, checkpoint: Path, weights: str, log: Path) -> Path:
    out = checkpoint.with_name(f"{checkpoint.name}.openvino-{_FORMATS[weights]}")
    if _is_fresh(out / "openvino_model.bin", checkpoint):
        return out
    tool = python.with_name("optimum-cli")
    if not tool.exists():
        raise BenchmarkError(
            f"There is no {tool}; install optimum-intel there, or let "
            "`python -m benchmarks.peers environments` make the environment."
        )
    arguments = ["export", "openvino", "--model", str(checkpoint)]
    task = ["--task", "text-generation-with-past", "--weight-format", _FORMATS[weights]]
    _run([str(tool), *arguments, *task, str(out)], log)
    return out


def _gguf(python: Path, checkpoint: Path, weights: str, log: Path) -> Path:
    kind = "bf16" if weights == "bf16" else "q8_0"
    out = checkpoint.with_name(f"{checkpoint.name}.{kind}.gguf")
    if not _is_fresh(out, checkpoint):
        script = ROOT / "benchmarks" / "peers" / "runners" / "gguf_file.py"
        _run([str(python), str(script), str(checkpoint), str(out), kind], log)
    return out


def _is_fresh(made: Path, checkpoint: Path) -> bool:
    """True when a conversion is there and no older than the checkpoint."""
    try:
        return made.stat().st_mtime >= (checkpoint / "model.safetensors").stat().st_mtime
    except OSError:
        return False


def _run(command: list[str], log: Path) -> None:
    try:
        with log.open("ab") as output:
            done = subprocess.run(command, stdout=output, stderr=output, check=False)
    except OSError as error:
        raise BenchmarkError(f"{command[0]} cannot be started: {error.strerror}.") from None
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").strip()[-_SHOWN:]
        raise BenchmarkError(f"{Path(command[0]).name} failed: …{tail}")
