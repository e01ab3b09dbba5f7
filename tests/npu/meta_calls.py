"""`python -m tests.npu.meta_calls`: every call of the back end past torch_npu's own meta kernels.

Prints one line of JSON: the schemas of the operators, and how many calls each took.
"""

import importlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.device.runtime import HeadNorms
from tandem_engine.quantization.int8 import Int8Weight, StaticInput
from tests.npu.schemas import SCHEMAS

ROWS: Final = (1, 16, 256)
BLOCK_SIZE: Final = 128
BF16: Final = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Shape:
    """What one rank holds of a model."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    has_head_norms: bool
    has_bias: bool = False
    head_dim: int = 128


SHAPES: Final = {
    "Qwen3-0.6B": Shape(1024, 16, 8, 3072, 151936, has_head_norms=True),
    "Qwen3-14B": Shape(5120, 40, 8, 17408, 151936, has_head_norms=True),
    "Llama-3.1-70B at tp 8": Shape(8192, 8, 1, 3584, 16032, has_head_norms=False),
    "Qwen2.5-7B": Shape(3584, 28, 4, 18944, 152064, has_head_norms=False, has_bias=True),
}


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of torch_npu's operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func.namespace == "npu":
            self.counts[func._opname] += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Call all, on tensors that have shapes and no memory."""
    importlib.import_module("torch_npu")
    schemas = {name: str(getattr(torch.ops.npu, name).default._schema) for name in SCHEMAS}
    with Calls() as calls, torch.device("meta"):
        for shape in SHAPES.values():
            for rows in ROWS:
                one_layer(shape, rows)
    print(json.dumps({"schemas": schemas, "calls": calls.counts}))  # noqa: T201


def one_layer(shape: Shape, rows: int) -> None:
    """Compute a layer and the head, in bfloat16 and in 8 bits, and check each result's shape."""
    kernels = NpuKernels()
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    residual = torch.empty(rows, shape.hidden, dtype=BF16)
    for linear in (floats, dynamic, static):
        x = kernels.rms_norm(residual, _vector(shape.hidden), 1e-6)
        qkv = linear(kernels, x, width, has_bias=shape.has_bias)
        attended = attention(kernels, shape, qkv, rows)
        x = linear(kernels, attended, shape.hidden)
        x, residual = kernels.add_rms_norm(x, residual, _vector(shape.hidden), 1e-6)
        gated = kernels.silu_mul(linear(kernels, x, 2 * shape.intermediate))
        _check(gated, rows, shape.intermediate)
        x = linear(kernels, gated, shape.hidden)
        _check(x, rows, shape.hidden)
        _check(floats(kernels, x, shape.vocab), rows, shape.vocab)


def attention(kernels: NpuKernels, shape: Shape, qkv: Tensor, rows: int) -> Tensor:
    """Half of the rows decode, the others are one chunk of a prompt."""
    decodes = max(1, rows // 2)
    chunk = [rows - decodes] if rows > decodes else []
    contexts = [200] * decodes + [length + 300 for length in chunk]
    blocks = [-(-length // BLOCK_SIZE) for length in contexts]
    metadata = build_attention_metadata(
        query_lens=[1] * decodes + chunk,
        context_lens=contexts,
        block_tables=[
            range(sum(blocks[:row]), sum(blocks[: row + 1])) for row in range(len(blocks))
        ],
        block_size=BLOCK_SIZE,
        device="meta",
    )
    keys, values = torch.empty(
        2, sum(blocks), shape.kv_heads, BLOCK_SIZE, shape.head_dim, dtype=BF16
    )
    norms = HeadNorms(_vector(shape.head_dim), _vector(shape.head_dim), 1e-6)
    q = kernels.prepare_attention(
        qkv,
        torch.empty(4096, shape.head_dim, dtype=BF16),
        keys,
        values,
        metadata,
        norms=norms if shape.has_head_norms else None,
    )
    _check(q, rows, shape.heads, shape.head_dim)
    attended = kernels.paged_attention(q, keys, values, metadata, shape.head_dim**-0.5)
    _check(attended, rows, shape.heads * shape.head_dim)
    return attended


def floats(kernels: NpuKernels, x: Tensor, outputs: int, *, has_bias: bool = False) -> Tensor:
    """A linear layer in bfloat16."""
    bias = _vector(outputs) if has_bias else None
    return kernels.linear(x, pack(kernels, torch.empty(outputs, x.shape[1], dtype=BF16), bias))


def dynamic(kernels: NpuKernels, x: Tensor, outputs: int, *, has_bias: bool = False) -> Tensor:
    """A linear layer in 8 bits, whose inputs are quantised token by token."""
    return _int8(kernels, x, outputs, None, has_bias=has_bias)


def static(kernels: NpuKernels, x: Tensor, outputs: int, *, has_bias: bool = False) -> Tensor:
    """A linear layer in 8 bits, whose inputs have one scale."""
    return _int8(kernels, x, outputs, StaticInput(0.1, 120), has_bias=has_bias)


def _int8(
    kernels: NpuKernels, x: Tensor, outputs: int, static: StaticInput | None, *, has_bias: bool
) -> Tensor:
    weight = Int8Weight(
        values=torch.empty(outputs, x.shape[1], dtype=torch.int8),
        scales=torch.empty(outputs),
        bias=torch.empty(outputs) if has_bias else None,
        static=static,
    )
    return kernels.linear(x, pack_int8(kernels, weight))


def _vector(size: int) -> Tensor:
    return torch.empty(size, dtype=BF16)


def _check(x: Tensor, *shape: int) -> None:
    if x.shape != shape or x.dtype != BF16:
        raise AssertionError(f"{tuple(x.shape)} of {x.dtype} came, not {shape} of {BF16}")


if __name__ == "__main__":
    main()
