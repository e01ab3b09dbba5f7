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
    q_norm: Tensor | None = None
    """[head_dim]; None: heads are not normed."""
    k_norm: Tensor | None = None
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
    """All of a decoder, or the part of it that one rank holds; sizes are those of the part."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    """Outputs of the head; on several ranks all have as many, padded."""
    vocab: range | None
    """Tokens whose rows of the embedding are here; None: all."""
    dtype: torch.dtype
    """Of the weights that are not in 8 bits, and of the KV cache unless it is."""
    eps: float
    """Added by norms to the mean square."""
    rope: Tensor
    """[positions, head_dim]: cosines of one half of a head, then sines; see `model.rope`."""
    embedding: Tensor | PackedLinear | None
    """[vocab, hidden]; the head itself where the two are tied and it keeps no other copy; None
    where another rank embeds tokens."""
    layers: tuple[PackedLayer, ...]
    norm: Tensor | None
    """[hidden]; None where another rank computes logits."""
    head: PackedLinear | None
    """hidden → vocab; like `norm`."""

    @property
    def scale(self) -> float:
        """Factor of attention's scores."""
        return float(self.head_dim**-0.5)


class StepStages(Protocol):
    """One step on one rank of several, stage by stage: what lies between two collectives.

    `hidden` is where stages leave their result and find that of collectives. Between them a
    residual is kept here: the sum of all results so far but the last. Some methods take `rows`,
    the rank's own where the ranks of tp share them (sp); None: all of the step's rows.
    """

    @property
    def hidden(self) -> Tensor:
        """[rows, hidden]: result of the last stage, to be reduced or gathered in place."""

    def embed(self) -> None:
        """Set `hidden` to the embeddings of the tokens in `vocab`, zeros for others."""

    def resume(self, hidden: Tensor, rows: slice | None) -> None:
        """Set `hidden` to what another rank's `leave` gave."""

    def attention_norm(self, layer: int, rows: slice) -> None:
        """Add `hidden` to the residual, and set these rows of `hidden` to its norm."""

    def attention(self, layer: int, *, is_normed: bool) -> None:
        """Norm, unless `hidden` is it, attention and output projection.

        The last layer before the head goes on with the rows of the logits alone.
        """

    def mlp_norm(self, layer: int, rows: slice) -> None:
        """As `attention_norm`, before the feed-forward layer."""

    def mlp(self, layer: int, *, is_normed: bool) -> None:
        """Norm, unless `hidden` is it, and feed-forward layer."""

    def leave(self, rows: slice | None) -> None:
        """Set `hidden` to the residual with `hidden` added; there is no residual then."""

    def logits(self, rows: slice) -> Tensor:
        """[rows, vocab_size] float32, of some of the logits rows.

        Each row is asked for once. The next call may overwrite what this one gave.
        """

    def close(self) -> None:
        """Give memory back; no other method may be called any more."""


class ForwardPass(Protocol):
    """A device's own forward pass of one packed_model, faster than its kernels one by one."""

    def reserve(self, num_rows: int) -> None:
        """Have room for the activations of so many rows.

        The halves of a step are under way at once: reserved before, both have their place in the
        memory that the step would have as a whole.
        """

    def stages(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
        *,
        num_rows: int,
    ) -> StepStages:
        """Begin one step of a packed_model that is a rank's part of a decoder.

        Args:
            token_ids: [tokens] int64.
            cache_blocks: Of the rank; see `kvcache.layout.CacheLayout.shape`.
            metadata: Rows, contexts and blocks of the step.
            logits_rows: [n] int64, tokens of the flat batch whose next token is sampled.
            num_rows: Rows of `hidden`: all tokens, rounded up to what ranks can share.
        """

    def __call__(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
    ) -> Tensor:
        """Compute one step; the packed_model must be whole.

        Args:
            token_ids: [tokens] int64.
            cache_blocks: See `kvcache.layout.CacheLayout.shape`.
            metadata: Rows, contexts and blocks of the step.
            logits_rows: [n] int64, tokens of the flat batch whose next token is sampled.

        Returns:
            [n, vocab] float32.
        """
