"""The forward pass of a decoder-only transformer, written once for every device.

It knows shapes and order; every operation is a kernel that is handed in, and where K and V stand
is the business of the cache and of the step's metadata.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.runtime import Kernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.parameters import Layer, Parameters
from tandem_engine.model.rope import RopeTable

LayerCache = tuple[Tensor, Tensor]
"""K and V of one layer, each [num_blocks, kv_heads, block_size, head_dim].

A block is contiguous, so it can be moved as one piece, and within it each KV head is one matrix
[block_size, head_dim]: what a batched matrix product reads without copying.
"""


@dataclass(frozen=True, slots=True)
class KVCache:
    """K and V of all layers. All of it is one tensor, so that a block moves in one operation."""

    blocks: Tensor
    """[layers, 2, num_blocks, kv_heads, block_size, head_dim]; of the 2, K is first."""
    layers: tuple[LayerCache, ...]
    """The same memory, layer by layer."""

    def __getitem__(self, layer: int) -> LayerCache:
        """K and V of one layer."""
        return self.layers[layer]

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)


class Decoder:
    """A decoder with its parameters; one instance serves any number of sequences."""

    def __init__(self, config: DecoderConfig, parameters: Parameters, rope: RopeTable) -> None:
        self.config = config
        self.parameters = parameters
        self._rope = rope
        self._scale = config.head_dim**-0.5

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters, and so of activations and KV cache."""
        return self.parameters.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.parameters.embedding.device

    @property
    def max_positions(self) -> int:
        """Tokens that one sequence may have."""
        return self._rope.num_positions

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
        kernels: Kernels,
        *,
        logits_rows: Tensor,
    ) -> Tensor:
        """Compute one step: write the tokens' K and V, return the logits that are asked for.

        To be called under torch.inference_mode.

        Args:
            token_ids: [tokens] int64, all rows one after another.
            positions: [tokens] int64, from 0, below max_positions.
            kv_cache: Written at the slots of the step, read up to each row's context.
            metadata: Rows, contexts and blocks of the step.
            kernels: The device's.
            logits_rows: [n] int64, tokens of the flat batch whose successor is wanted.

        Returns:
            [n, vocab] float32.
        """
        parameters, eps = self.parameters, self.config.rms_norm_eps
        step = _Step(*self._rope.at(positions), metadata, kernels)
        residual = kernels.embedding(token_ids, parameters.embedding)  # [tokens, hidden]
        x = kernels.rms_norm(residual, parameters.layers[0].attention_norm, eps)
        next_norms = [layer.attention_norm for layer in parameters.layers[1:]] + [parameters.norm]
        last = len(parameters.layers) - 1
        for number, layer in enumerate(parameters.layers):
            x = self._attention(layer, x, kv_cache[number], step)
            if number == last:
                # K and V are written; what follows matters for the wanted rows alone.
                x, residual = x.index_select(0, logits_rows), residual.index_select(0, logits_rows)
            x, residual = kernels.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = kernels.linear(x, layer.gate_up.weight, layer.gate_up.bias)
            x = kernels.silu_mul(x)
            x = kernels.linear(x, layer.down.weight, layer.down.bias)
            x, residual = kernels.add_rms_norm(x, residual, next_norms[number], eps)
        return kernels.linear(x, parameters.head, None).float()

    def _attention(self, layer: Layer, x: Tensor, cache: LayerCache, step: "_Step") -> Tensor:
        """[tokens, hidden] → [tokens, hidden]."""
        config, kernels = self.config, step.kernels
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = kernels.linear(x, layer.qkv.weight, layer.qkv.bias)
        by_head = qkv.view(-1, heads + 2 * kv_heads, config.head_dim)
        q, k, v = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)  # each [tokens, …]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = kernels.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = kernels.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q, k = kernels.rotary(q, k, step.cos, step.sin)
        kernels.write_kv(k, v, *cache, step.metadata)
        mixed = kernels.paged_attention(q, *cache, step.metadata, self._scale)
        return kernels.linear(mixed, layer.output.weight, layer.output.bias)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one forward pass share."""

    cos: Tensor  # [tokens, head_dim]
    sin: Tensor  # [tokens, head_dim]
    metadata: AttentionMetadata
    kernels: Kernels


def allocate_kv_cache(
    config: DecoderConfig,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> KVCache:
    """A cache of zeros.

    Zeros, because attention multiplies what stands behind the last token of a block by a weight
    of 0, and 0 times what happened to be in memory may not be a number.
    """
    shape = (config.num_layers, 2, num_blocks, config.num_kv_heads, block_size, config.head_dim)
    blocks = torch.zeros(shape, dtype=dtype, device=device)
    return KVCache(blocks, tuple((layer[0], layer[1]) for layer in blocks))


def allocate_host_cache(kv_cache: KVCache, *, num_blocks: int) -> Tensor:
    """Room in main memory for blocks of `kv_cache` that were swapped out.

    It is pinned where the cache lies on a device: only then do transfers run by themselves, at
    full speed.

    Returns:
        [num_blocks, layers, 2, kv_heads, block_size, head_dim]: a block is one piece.
    """
    layers, pair, _, *block = kv_cache.blocks.shape
    return torch.zeros(
        (num_blocks, layers, pair, *block),
        dtype=kv_cache.blocks.dtype,
        pin_memory=kv_cache.blocks.device.type != "cpu",
    )
