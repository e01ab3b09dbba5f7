"""What is said of ranks before they start is what their kernels do when they load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem_engine.api.config import EngineConfig, ParallelismConfig, Quantization
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.preview import native_problem
from tests.unit.engine.native import native_kernels

Make = Callable[..., Path]
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CASES: dict[str, tuple[dict[str, int], Quantization, ParallelShape, str | None]] = {
    "whole": ({"intermediate_size": 30}, "none", ParallelShape(pp=2), None),
    "odd share": (
        {"intermediate_size": 30},
        "none",
        ParallelShape(tp=2),
        "intermediate_size is 15, and in float it must be a multiple of 2; tp 1 avoids that",
    ),
    "even share": ({"intermediate_size": 36}, "none", ParallelShape(tp=2), None),
    "even share in 8 bits": (
        {"intermediate_size": 36},
        "w8a8",
        ParallelShape(tp=2),
        "intermediate_size is 18, and in 8 bits it must be a multiple of 4; tp 1 avoids that",
    ),
    "heads in 8 bits": (
        {"head_dim": 10},
        "w8a8",
        ParallelShape(tp=4),
        "num_attention_heads * head_dim is 10, and in 8 bits it must be a multiple of 4; tp 1 or 2 "
        "avoids that",
    ),
    "hidden size in 8 bits": (
        {"hidden_size": 66, "head_dim": 16},
        "w8a8",
        ParallelShape(tp=2),
        "hidden_size is 66, and in 8 bits it must be a multiple of 4; no tp of this model avoids "
        "that",
    ),
}


@pytest.mark.parametrize(
    ("sizes", "quantization", "shape", "problem"), CASES.values(), ids=list(CASES)
)
def test_the_preview_and_the_kernels_agree(
    make_checkpoint: Make,
    sizes: dict[str, Any],
    quantization: Quantization,
    shape: ParallelShape,
    problem: str | None,
) -> None:
    native_kernels()
    folder = make_checkpoint("Qwen3ForCausalLM", **HEADS, **sizes)
    config = EngineConfig(
        model_path=str(folder),
        quantization=quantization,
        parallelism=ParallelismConfig(tp=shape.tp, pp=shape.pp),
    )

    said = native_problem(config)

    for rank in range(shape.world_size):
        runtime = CpuRuntime(memory_bytes=1 << 30)
        load_decoder(folder, runtime=runtime, quantization=quantization, shape=shape, rank=rank)
        assert isinstance(runtime.kernels, NativeKernels)
        assert runtime.kernels.is_native == (problem is None)
    assert (said is None) == (problem is None)
    assert problem is None or problem in str(said)
