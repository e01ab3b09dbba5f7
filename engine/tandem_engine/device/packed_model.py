"""A decoder's parameters in the layout of one device's kernels: the input of a forward pass."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata


class PackedLinear:
    """x @ weight.T + bias, in the layout that the kernels that packed it read fastest.

    The base of each such layout, which only the kernels that packed it can read.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """One block: attention, then the feed-forward layer, each after a norm."""

    attention_norm: Tensor
    """[hidden]."""
    qkv: PackedLinear
    """hidden → (heads + 2 * kv_heads) * head_dim: all heads of Q, then of K, then of V."""
    q_norm: Tensor | None
    """[head_dim]."""
    k_norm: Tensor | None
    """[head_dim]."""
    output: PackedLinear
    """heads * head_dim → hidden."""
    mlp_norm: Tensor
    """[hidden]."""
    gate_up: PackedLinear
    """hidden → 2 * intermediate: gate, then up."""
    down: PackedLinear
    """intermediate → hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """All of a decoder."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    dtype: torch.dtype
    """Of the weights that are not in 8 bits, and of the KV cache unless it is."""
    eps: float
    """Added by norms to the mean square."""
    rope: Tensor
    """[positions, head_dim]: cosines of one half of a head, then sines; see `model.rope`."""
    embedding: Tensor | PackedLinear
    """[vocab, hidden]; the head itself where the two are tied and it keeps no other copy."""
    layers: tuple[PackedLayer, ...]
    norm: Tensor
    """[hidden]."""
    head: PackedLinear
    """hidden → vocab."""

    @property
    def scale(self) -> float:
        """Factor of attention's scores."""
        return float(self.head_dim**-0.5)


class ForwardPass(Protocol):
    """A device's own forward pass of one packed_model, faster than its kernels one by one."""

    def __call__(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
    ) -> Tensor:
        """Compute one step.

        Args:
            token_ids: [tokens] int64.
            cache_blocks: [layers, 2, num_blocks, kv_heads, block_size, head_dim], or as in
                `kv_int8`.
            metadata: Rows, contexts and blocks of the step.
            logits_rows: [n] int64, tokens of the flat batch whose next token is sampled.

        Returns:
            [n, vocab] float32.
        """
