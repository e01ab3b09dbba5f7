"""Each kernel at the shapes of a model: what it computes, reads and writes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import torch
from torch import Tensor

from benchmarks.kernels.measure import Work
from benchmarks.kernels.shapes import Batch, cache_layout, make_cache, make_rope, random_tensor
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.device.runtime import HeadNorms, Kernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.quantization.int8 import Int8Weight

EPS = 1e-6
_ITEMSIZE: Final = torch.bfloat16.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel at one shape."""

    kernel: str
    shape: str
    prepare: Callable[[Kernels], Work]
    """Makes tensors, and gives the work on them; see `make`."""
    num_bytes: int
    """Bytes that it must read and write at least."""
    operations: int = 0
    """Of its products; a multiplication counts 2."""
    in_a_row: int = 1
    """Calls in a turn (`Stopwatch.alternate`)."""

    def make(self, kernels: Kernels) -> Work:
        """Return the work, on tensors of its own with the same numbers for kernels of each kind."""
        torch.manual_seed(0)
        return self.prepare(kernels)


def cases_of(config: DecoderConfig, batches: list[Batch]) -> Iterator[Case]:
    """All kernels at each batch."""
    for batch in batches:
        yield _norm(config, batch)
        for kind in (torch.bfloat16, torch.int8):
            yield _prepare(config, batch, kind)
            yield _attention(config, batch, kind)
        yield _silu(config, batch)
        yield from _linears(config, batch)


def _norm(config: DecoderConfig, batch: Batch) -> Case:
    def prepare(kernels: Kernels) -> Work:
        x, residual = random_tensor(2, batch.num_tokens, config.hidden_size).unbind()
        weight = random_tensor(config.hidden_size)
        return lambda: kernels.add_rms_norm(x, residual, weight, EPS)

    return Case(
        kernel="add, norm",
        shape=batch.name,
        prepare=prepare,
        num_bytes=4 * batch.num_tokens * config.hidden_size * _ITEMSIZE,
    )


def _of_cache(kernel: str, kv_dtype: torch.dtype) -> str:
    return f"{kernel}, int8" if kv_dtype == torch.int8 else kernel


def _prepare(config: DecoderConfig, batch: Batch, kv_dtype: torch.dtype) -> Case:
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim

    def prepare(kernels: Kernels) -> Work:
        metadata, rope = batch.layout(), make_rope(config).table
        cache = make_cache(config, batch, kv_dtype)
        qkv = random_tensor(batch.num_tokens, width)
        norms = HeadNorms(random_tensor(config.head_dim), random_tensor(config.head_dim), EPS)
        return lambda: kernels.prepare_attention(qkv, rope, *cache[0], metadata, norms=norms)

    written = config.num_heads * config.head_dim
    return Case(
        kernel=_of_cache("q/k norm, rotary, cache", kv_dtype),
        shape=batch.name,
        prepare=prepare,
        num_bytes=batch.num_tokens * ((width + written) * _ITEMSIZE + _kv_bytes(config, kv_dtype)),
    )


def _kv_bytes(config: DecoderConfig, kv_dtype: torch.dtype) -> int:
    """Of one token in one layer's cache."""
    return cache_layout(config, kv_dtype, num_layers=1).bytes_per_token


def _attention(config: DecoderConfig, batch: Batch, kv_dtype: torch.dtype) -> Case:
    def prepare(kernels: Kernels) -> Work:
        metadata, cache = batch.layout(), make_cache(config, batch, kv_dtype)
        q = random_tensor(batch.num_tokens, config.num_heads, config.head_dim) * 50
        scale = config.head_dim**-0.5
        return lambda: kernels.paged_attention(q, *cache[0], metadata, scale)

    kv_bytes = batch.num_keys * _kv_bytes(config, kv_dtype)
    q_bytes = batch.num_tokens * config.num_heads * config.head_dim * _ITEMSIZE
    return Case(
        kernel=_of_cache("attention", kv_dtype),
        shape=batch.name,
        prepare=prepare,
        num_bytes=kv_bytes + 2 * q_bytes,
        operations=4 * batch.num_scores * config.num_heads * config.head_dim,
    )


def _silu(config: DecoderConfig, batch: Batch) -> Case:
    def prepare(kernels: Kernels) -> Work:
        gate_up = random_tensor(batch.num_tokens, 2 * config.intermediate_size)
        return lambda: kernels.silu_mul(gate_up)

    return Case(
        kernel="silu * mul",
        shape=batch.name,
        prepare=prepare,
        num_bytes=3 * batch.num_tokens * config.intermediate_size * _ITEMSIZE,
    )


def _linears(config: DecoderConfig, batch: Batch) -> Iterator[Case]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    for inputs, outputs in ((hidden, 2 * mlp), (mlp, hidden)):
        yield _linear(batch, inputs, outputs)
        yield _linear_int8(batch, inputs, outputs)


def _in_turns(kernels: Kernels, x: Tensor, weights: Sequence[PackedLinear]) -> Work:
    """Multiply by another weight each time: none of them is in a cache."""
    turns = cycle(weights)
    return lambda: kernels.linear(x, next(turns))


def _linear(batch: Batch, inputs: int, outputs: int) -> Case:
    def prepare(kernels: Kernels) -> Work:
        x = random_tensor(batch.num_tokens, inputs)
        weights = [random_tensor(outputs, inputs) for _ in range(_copies(inputs * outputs))]
        return _in_turns(kernels, x, [pack(kernels, weight) for weight in weights])

    return Case(
        kernel=f"linear {inputs} to {outputs}",
        shape=f"{batch.num_tokens} rows",
        prepare=prepare,
        num_bytes=_ITEMSIZE * (inputs * outputs + batch.num_tokens * (inputs + outputs)),
        operations=2 * batch.num_tokens * inputs * outputs,
    )


def _linear_int8(batch: Batch, inputs: int, outputs: int) -> Case:
    """W8A8, with the quantising of what comes in."""

    def prepare(kernels: Kernels) -> Work:
        x, scales = random_tensor(batch.num_tokens, inputs), torch.full((outputs,), 1e-4)
        values = [
            torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
            for _ in range(_copies(inputs * outputs, torch.int8))
        ]
        weights = [pack_int8(kernels, Int8Weight(each, scales, None)) for each in values]
        return _in_turns(kernels, x, weights)

    return Case(
        kernel=f"linear {inputs} to {outputs}, W8A8",
        shape=f"{batch.num_tokens} rows",
        prepare=prepare,
        num_bytes=inputs * outputs + _ITEMSIZE * batch.num_tokens * (inputs + outputs),
        operations=2 * batch.num_tokens * inputs * outputs,
    )


def _copies(parameters: int, dtype: torch.dtype = torch.bfloat16) -> int:
    """Weights in turn, so that each comes from memory, as in a model, and not from a cache."""
    return max(2, (160 << 20) // (parameters * dtype.itemsize))
