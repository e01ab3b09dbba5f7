"""The stages of a decoder, kernel by kernel, written once for every device."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.packed_model import PackedLayer, PackedLinear, PackedModel
from tandem_engine.device.runtime import HeadNorms, Kernels

LayerCache = tuple[Tensor, Tensor]
"""K and V of one layer, each [num_blocks, kv_heads, block_size, head_dim], or as in `kv_int8`.

A block is contiguous, so it can be moved as one piece, and within it each KV head is one matrix
[block_size, head_dim]: what a batched matrix product reads without copying.
"""

LinearSum = Callable[[Tensor, PackedLinear], Tensor]
"""[tokens, in] → [tokens, out], added up among the ranks that share a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStep:
    """Inputs of a step to its kernels."""

    token_ids: Tensor
    cache: tuple[LayerCache, ...]
    metadata: AttentionMetadata
    logits_rows: Tensor
    num_rows: int
    """Rows of hidden states: see `ForwardPass.stages`."""
    linear_sum: LinearSum | None = None
    """None: results of the two layers are parts of a sum, which a collective completes."""


class KernelStages:
    """Implements `device.packed_model.StepStages`.

    Args:
        packed_model: All of a decoder, or a rank's part.
        kernels: The device's.
        step: The step to compute.
    """

    def __init__(self, packed_model: PackedModel, kernels: Kernels, step: KernelStep) -> None:
        self._packed_model, self._kernels, self._step = packed_model, kernels, step
        self._hidden: Tensor | None = None
        self._residual: Tensor | None = None
        # What the head reads, of all rows of the logits.
        self._final: Tensor | None = None

    @property
    def hidden(self) -> Tensor:
        """See `StepStages`, as for all methods."""
        assert self._hidden is not None, "no stage has been computed; this is a bug"  # noqa: S101
        return self._hidden

    def embed(self) -> None:
        """Look up the tokens of this rank."""
        table, own = self._packed_model.embedding, self._packed_model.vocab
        assert table is not None, "another rank embeds tokens; this is a bug"  # noqa: S101
        ids = self._step.token_ids
        if own is None:
            self._hidden = self._kernels.embedding(ids, table)
            return
        absent = (ids < own.start) | (ids >= own.stop)
        rows = self._kernels.embedding((ids - own.start).masked_fill_(absent, 0), table)
        rows.masked_fill_(absent.unsqueeze(1), 0)
        self._put(rows, is_shared=True)

    def resume(self, hidden: Tensor, rows: slice | None) -> None:
        """Go on with another rank's hidden states."""
        self._hidden = hidden if rows is None else self._spread(hidden, rows)

    def attention_norm(self, layer: int, rows: slice) -> None:
        """Norm own rows."""
        norm = self._packed_model.layers[layer].attention_norm
        self._hidden = self._spread(self._normed(norm, rows), rows)

    def mlp_norm(self, layer: int, rows: slice) -> None:
        """Norm own rows."""
        norm = self._packed_model.layers[layer].mlp_norm
        self._hidden = self._spread(self._normed(norm, rows), rows)

    def attention(self, layer: int, *, is_normed: bool) -> None:
        """Attention and output projection."""
        step, packed_layer = self._step, self._packed_model.layers[layer]
        qkv = self._projected(packed_layer.attention_norm, packed_layer.qkv, is_normed=is_normed)
        x = self._attended(packed_layer, qkv, step.cache[layer])
        is_last = layer == len(self._packed_model.layers) - 1
        if is_last and self._packed_model.head is not None:
            # K and V are written; from here on only the rows of the logits are computed.
            x = x.index_select(0, step.logits_rows)
            if not len(x):  # operators of a card want rows
                self._put(x.new_empty(0, self._packed_model.hidden_size), is_shared=is_normed)
                return
            if self._residual is not None:
                self._residual = self._residual.index_select(0, step.logits_rows)
        linear = self._step.linear_sum or self._kernels.linear
        self._put(linear(x, packed_layer.output), is_shared=is_normed)

    def mlp(self, layer: int, *, is_normed: bool) -> None:
        """Feed-forward layer."""
        packed_layer = self._packed_model.layers[layer]
        gate_up = self._projected(packed_layer.mlp_norm, packed_layer.gate_up, is_normed=is_normed)
        linear_sum = self._step.linear_sum
        if linear_sum is None:
            x = self._kernels.silu_mul_linear(gate_up, packed_layer.down)
        else:
            x = linear_sum(self._kernels.silu_mul(gate_up), packed_layer.down)
        self._put(x, is_shared=is_normed)

    def leave(self, rows: slice | None) -> None:
        """Add the residual."""
        total = self._tokens() if rows is None else self.hidden[rows]
        if self._residual is not None:
            total = total + self._residual
        self._residual = None
        self._hidden = total if rows is None else self._spread(total, rows)

    def logits(self, rows: slice) -> Tensor:
        """The head's columns of this rank."""
        if self._final is None:
            self._final = self._hidden = self._last_norm()
        return self._kernels.linear(self._final[rows], present(self._packed_model.head)).float()

    def close(self) -> None:
        """Do nothing: tensors go by themselves."""

    def _projected(self, norm: Tensor, packed: PackedLinear, *, is_normed: bool) -> Tensor:
        """[tokens, hidden] → [tokens, out]: norm, unless `hidden` is it, and linear layer."""
        kernels, x = self._kernels, self._tokens()
        if is_normed:
            return kernels.linear(x, packed)
        self._hidden = None  # its memory is free from here on
        x, self._residual = kernels.norm_linear(
            x, self._residual, norm, self._packed_model.eps, packed
        )
        return x

    def _attended(self, layer: PackedLayer, qkv: Tensor, cache: LayerCache) -> Tensor:
        """Q, K and V of all heads → [tokens, heads * head_dim], before the output projection."""
        packed_model, kernels, metadata = self._packed_model, self._kernels, self._step.metadata
        norms = None
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = HeadNorms(layer.q_norm, layer.k_norm, packed_model.eps)
        q = kernels.prepare_attention(qkv, packed_model.rope, *cache, metadata, norms=norms)
        return self._attend(q, cache)

    def _attend(self, q: Tensor, cache: LayerCache) -> Tensor:
        """Queries of all heads over a layer's cache → [tokens, heads * head_dim]."""
        return self._kernels.paged_attention(
            q, *cache, self._step.metadata, self._packed_model.scale
        )

    def _last_norm(self) -> Tensor:
        """Norm what the head reads."""
        norm = self._packed_model.norm
        assert norm is not None, "another rank computes logits; this is a bug"  # noqa: S101
        return self._normed(norm)

    def _normed(self, norm: Tensor, rows: slice | None = None) -> Tensor:
        """Add `hidden` to the residual, and return its norm: of some rows, or of all."""
        kernels, eps = self._kernels, self._packed_model.eps
        x = self._tokens() if rows is None else self.hidden[rows]
        self._hidden = None  # its memory is free from here on
        if self._residual is None:
            self._residual = x
            return kernels.rms_norm(x, norm, eps)
        x, self._residual = kernels.add_rms_norm(x, self._residual, norm, eps)
        return x

    def _tokens(self) -> Tensor:
        """`hidden` without the rows that only make them even."""
        return self.hidden[: self._step.metadata.num_tokens]

    def _put(self, x: Tensor, *, is_shared: bool) -> None:
        """Set `hidden`, with as many rows as the ranks can share if they do."""
        has_all = not is_shared or len(x) == self._step.num_rows
        self._hidden = x if has_all else self._spread(x, _first(x))

    def _spread(self, x: Tensor, rows: slice) -> Tensor:
        """All rows, of which `x` are some; zeros elsewhere."""
        padded = x.new_zeros(self._step.num_rows, x.shape[1])
        padded[rows] = x
        return padded


def _first(x: Tensor) -> slice:
    return slice(len(x))


def present(head: PackedLinear | None) -> PackedLinear:
    """The head of a rank that computes logits."""
    assert head is not None, "another rank computes logits; this is a bug"  # noqa: S101
    return head
