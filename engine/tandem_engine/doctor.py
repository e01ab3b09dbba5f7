"""Compares the kernels of a device with the reference, one by one: `tandem doctor`.

The sizes are those of Qwen3-0.6B with a narrow vocabulary: decodes and a chunk of a prompt in one
step, in bfloat16 and in 8 bits.
"""

import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.graphs import DecodeShape
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime, HeadNorms, Kernels
from tandem_engine.quantization.int8 import Int8Weight, StaticInput, quantize_rows

TOLERANCE: Final = 2.0**-6
"""Two steps of bfloat16, as a share of the largest expected value."""

_DTYPE: Final = torch.bfloat16
_EPS: Final = 1e-6
_HIDDEN, _WIDTH = 1024, 3072
_HEADS, _KV_HEADS, _HEAD_DIM = 16, 8, 128
_BLOCK_SIZE: Final = 128
_CHUNK: Final = 27
_CONTEXTS: Final = (1, 128, 129, 300, 700)
"""Of the rows that decode: an end before, at and behind that of a block."""
_BLOCKS: Final = [-(-length // _BLOCK_SIZE) for length in (*_CONTEXTS, _CHUNK + _BLOCK_SIZE)]
"""Of each row, that of the chunk last."""
_STATIC: Final = StaticInput(scale=0.03, zero_point=101)


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    error: float
    """Largest difference from the reference, as a share of its largest value; NaN counts as
    infinite."""
    refusal: str | None = None
    """First line of the error that the kernel ended with; None: it did not."""

    @property
    def is_right(self) -> bool:
        """True if the result is within TOLERANCE."""
        return self.refusal is None and self.error <= TOLERANCE


Run = Callable[[Kernels, torch.device], Sequence[Tensor]]
"""Computes something with some kernels, whose tensors are on a device."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Results of the kernels of a device."""

    device: str
    """Its name, as a person knows it."""
    findings: tuple[Finding, ...]


def examine_device(name: str) -> Examination:
    """Open a device, and compare its kernels with the reference.

    Args:
        name: cpu or npu.

    Raises:
        ConfigError: The device cannot be used, or has no kernels but the reference.
    """
    runtime = open_device(name)
    if isinstance(runtime.kernels, ReferenceKernels):
        raise ConfigError(
            f"device {name} has no kernels here but the reference, which they are compared with; "
            "build them: python -m tandem_engine.device.cpu.native.build"
        )
    findings = tuple(examine(runtime.kernels, runtime.device))
    return Examination(_device_name(runtime), findings)


def _device_name(runtime: DeviceRuntime) -> str:
    kernels = type(runtime.kernels).__name__
    if runtime.device.type == "cpu":
        return f"{platform.machine()}, {kernels}"
    module = torch.get_device_module(runtime.device)
    return f"{module.get_device_name(runtime.device)}, {kernels}"


def examine(kernels: Kernels, device: torch.device) -> Iterator[Finding]:
    """Compare each kernel with the reference on the host, one after the other.

    Where the device has graphs, also what they replay.
    """
    for name, run in _checks_of(kernels).items():
        expected = run(ReferenceKernels(), torch.device("cpu"))
        try:
            got = [each.cpu() for each in run(kernels, device)]
        except Exception as error:  # noqa: BLE001  # whatever an operator raises is the finding
            words = str(error).strip() or type(error).__name__
            yield Finding(name, math.inf, words.splitlines()[0])
            continue
        yield Finding(name, max(map(_difference, got, expected)))


def _checks_of(kernels: Kernels) -> dict[str, Run]:
    """The checks for a device; those of graphs also where it cannot make them: they say why."""
    try:
        has_graphs = kernels.graphs() is not None
    except Exception:  # noqa: BLE001  # whatever a device raises is the finding
        has_graphs = True
    return _CHECKS | _GRAPH_CHECKS if has_graphs else _CHECKS


def _difference(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape:
        return math.inf
    wide = expected.float()
    error = float((got.float() - wide).abs().max() / wide.abs().max())
    return math.inf if math.isnan(error) else error


def _norm(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return [kernels.rms_norm(_random(device, _tokens(), _HIDDEN), _random(device, _HIDDEN), _EPS)]


def _add_norm(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    x, residual = (_random(device, _tokens(), _HIDDEN, seed=seed) for seed in (0, 1))
    return kernels.add_rms_norm(x, residual, _random(device, _HIDDEN), _EPS)


def _gate(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return [kernels.silu_mul(_random(device, _tokens(), 2 * _WIDTH))]


def _embedding(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    ids = torch.arange(_tokens(), device=device)
    return [kernels.embedding(ids, _random(device, 4 * _tokens(), _HIDDEN))]


def _linear(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    packed = pack(kernels, _weight(), _random(device, _WIDTH, seed=2), device=device)
    return [_apply(kernels, device, packed)]


def _linear_int8(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return [_apply(kernels, device, _int8(kernels, device, None))]


def _linear_static(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return [_apply(kernels, device, _int8(kernels, device, _STATIC))]


def _norm_linear(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return _normed(kernels, device, None)


def _norm_linear_static(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return _normed(kernels, device, _STATIC)


def _normed(
    kernels: Kernels, device: torch.device, static: StaticInput | None
) -> tuple[Tensor, Tensor]:
    x, residual = (_random(device, _tokens(), _HIDDEN, seed=seed) for seed in (0, 1))
    packed = _int8(kernels, device, static)
    return kernels.norm_linear(x, residual, _random(device, _HIDDEN), _EPS, packed)


def _gate_linear(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    # Gates that are wide open or shut, so that rounding them takes little of the bound.
    gate_up = 4 * _random(device, _tokens(), 2 * _HIDDEN)
    return [kernels.silu_mul_linear(gate_up, _int8(kernels, device, None))]


def _apply(kernels: Kernels, device: torch.device, packed: PackedLinear) -> Tensor:
    return kernels.linear(_random(device, _tokens(), _HIDDEN), packed)


def _int8(kernels: Kernels, device: torch.device, static: StaticInput | None) -> PackedLinear:
    values, scales = torch.empty(_WIDTH, _HIDDEN, dtype=torch.int8), torch.empty(_WIDTH)
    quantize_rows(_weight(), values=values, scales=scales)
    if static is not None:
        scales *= static.scale
    bias = _random(device, _WIDTH, seed=2).float()
    weight = Int8Weight(values, scales.to(device), bias, static)
    return pack_int8(kernels, weight, device=device)


def _prepare(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    return _prepared(kernels, device, None)


def _prepare_with_norms(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    q, k = (_random(device, _HEAD_DIM, seed=seed) for seed in (4, 5))
    return _prepared(kernels, device, HeadNorms(q, k, _EPS))


def _prepared(
    kernels: Kernels, device: torch.device, norms: HeadNorms | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Q, and the slots that were written; some kernels wipe the others of a block that begins."""
    width = (_HEADS + 2 * _KV_HEADS) * _HEAD_DIM
    qkv = _random(device, _tokens(), width, seed=3)
    half = _HEAD_DIM // 2
    angles = torch.outer(torch.arange(1024.0), 10000.0 ** -(torch.arange(half) / half))
    rope = torch.cat((angles.cos(), angles.sin()), dim=1).to(_DTYPE).to(device)
    keys, values = _caches(device)
    metadata = _metadata(device)
    q = kernels.prepare_attention(qkv, rope, keys, values, metadata, norms=norms)
    slots = (metadata.slot_blocks, slice(None), metadata.slot_offsets)
    return q, keys[slots], values[slots]


def _attention(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    q = _random(device, _tokens(), _HEADS, _HEAD_DIM, seed=6)
    keys, values = _caches(device)
    return [kernels.paged_attention(q, keys, values, _metadata(device), _HEAD_DIM**-0.5)]


def _replayed_layer(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    """Norm and linear layer of inputs that come once it is recorded."""
    x, residual = (_random(device, _tokens(), _HIDDEN, seed=seed) for seed in (0, 1))
    norm, packed = _random(device, _HIDDEN), pack(kernels, _weight(), None, device=device)

    def compute(inputs: Tensor) -> Sequence[Tensor]:
        return kernels.norm_linear(inputs, residual, norm, _EPS, packed)

    graphs = kernels.graphs()
    results = compute(x)
    if graphs is None:
        return results
    inputs, graph = torch.zeros_like(x), graphs.new()
    with graph.record():
        results = compute(inputs)
    inputs.copy_(x)
    graph.replay()
    return results


def _replayed_write(kernels: Kernels, device: torch.device) -> Sequence[Tensor]:
    """Q of decodes, and the slots that they write, which come once it is recorded."""
    num_rows, width = len(_CONTEXTS), (_HEADS + 2 * _KV_HEADS) * _HEAD_DIM
    qkv, rope = _random(device, num_rows, width, seed=3), _random(device, 1024, _HEAD_DIM, seed=4)
    metadata = build_attention_metadata(
        query_lens=[1] * num_rows,
        context_lens=_CONTEXTS,
        block_tables=[[row] * _BLOCKS[row] for row in range(num_rows)],
        block_size=_BLOCK_SIZE,
        device=device,
    )
    keys, values = _caches(device)

    def compute(metadata: AttentionMetadata) -> Tensor:
        return kernels.prepare_attention(qkv.clone(), rope, keys, values, metadata)

    graphs = kernels.graphs()
    q = compute(metadata)
    if graphs is not None:
        inputs = graphs.inputs(DecodeShape(num_rows, _KV_HEADS, _BLOCK_SIZE, num_rows, device))
        graph = graphs.new()
        with graph.record():
            q = compute(inputs.metadata)
        keys.zero_()
        values.zero_()
        inputs.load(metadata)
        graph.replay()
    slots = (metadata.slot_blocks, slice(None), metadata.slot_offsets)
    return q, keys[slots], values[slots]


def _metadata(device: torch.device) -> AttentionMetadata:
    # From the last block down: that a table is read at all shows where ids are not in order.
    ids = iter(reversed(range(sum(_BLOCKS))))
    return build_attention_metadata(
        query_lens=[1] * len(_CONTEXTS) + [_CHUNK],
        context_lens=[*_CONTEXTS, _CHUNK + _BLOCK_SIZE],
        block_tables=[[next(ids) for _ in range(count)] for count in _BLOCKS],
        block_size=_BLOCK_SIZE,
        device=device,
    )


def _caches(device: torch.device) -> tuple[Tensor, Tensor]:
    shape = (sum(_BLOCKS), _KV_HEADS, _BLOCK_SIZE, _HEAD_DIM)
    return _random(device, *shape, seed=7), _random(device, *shape, seed=8)


def _tokens() -> int:
    return len(_CONTEXTS) + _CHUNK


def _random(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(_DTYPE).to(device)


@cache
def _weight() -> Tensor:
    """[_WIDTH, _HIDDEN] on the host."""
    return _random(torch.device("cpu"), _WIDTH, _HIDDEN, seed=1)


_CHECKS: Final[dict[str, Run]] = {
    "embedding": _embedding,
    "RMS norm": _norm,
    "add and RMS norm": _add_norm,
    "SwiGLU": _gate,
    "linear, bfloat16": _linear,
    "linear, 8 bits, a scale a token": _linear_int8,
    "linear, 8 bits, one scale": _linear_static,
    "norm and linear, a scale a token": _norm_linear,
    "norm and linear, one scale": _norm_linear_static,
    "SwiGLU and linear, a scale a token": _gate_linear,
    "rotary embedding, KV cache": _prepare,
    "the same with norms of heads": _prepare_with_norms,
    "attention of decodes and a chunk": _attention,
}
_GRAPH_CHECKS: Final[dict[str, Run]] = {
    "norm and linear, replayed": _replayed_layer,
    "rotary embedding, KV cache, replayed": _replayed_write,
}
