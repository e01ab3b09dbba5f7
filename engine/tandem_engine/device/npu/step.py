"""A step's rows and slots as the operators of an NPU take them: made once, read by each layer."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata, lay_out_attention
from tandem_engine.device.graphs import DecodeShape
from tandem_engine.device.host_memory import to_device


@dataclass(slots=True)
class StepInputs:
    """Rows and slots of one step, for all layers with as many KV heads."""

    query_ends: list[int]
    """[rows]: tokens of the flat batch up to and including each row, on the host."""
    context_lens: list[int]
    """[rows]: tokens of each row in the cache, on the host."""
    block_table: Tensor
    """[rows, most blocks] int32; 0 behind a row's last block, which is never read."""
    slots: Tensor
    """[tokens * kv_heads] int32: where each head of each token goes; see `kernels`."""
    fresh_blocks: Tensor | None
    """[fresh blocks] int64: blocks that begin; None: none does."""
    positions: Tensor
    """[tokens] int64."""
    _rope: Tensor | None = None
    _angles: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, metadata: AttentionMetadata, *, kv_heads: int) -> "StepInputs":
        """Return those of a step, laid out by the first layer that asks."""
        return metadata.once(_key(kv_heads), partial(_lay_out, metadata, kv_heads))

    def angles(self, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of all tokens, each [1, tokens, 1, head_dim].

        Args:
            rope: [positions, head_dim]: cosines of one half of a head, then sines.
        """
        if self._angles is None or self._rope is not rope:
            cos, sin = rope.index_select(0, self.positions)[None, :, None].chunk(2, dim=-1)
            self._rope = rope
            self._angles = (torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1))
        return self._angles


def _key(kv_heads: int) -> tuple[str, int]:
    """The key by which a step keeps them."""
    return "npu", kv_heads


def _lay_out(metadata: AttentionMetadata, kv_heads: int) -> StepInputs:
    blocks = np.diff(metadata.first_block)
    table = np.zeros((metadata.num_rows, int(blocks.max())), dtype=np.int32)
    table[np.arange(table.shape[1]) < blocks[:, None]] = metadata.blocks
    heads = metadata.token_blocks[:, None] * kv_heads + np.arange(kv_heads)
    slots = heads * metadata.block_size + metadata.token_offsets[:, None]
    has_fresh = bool((metadata.token_offsets == 0).any())
    return StepInputs(
        query_ends=metadata.row_starts[1:].tolist(),
        context_lens=metadata.context_lens.tolist(),
        block_table=to_device(table, metadata.device),
        slots=to_device(slots.astype(np.int32).reshape(-1), metadata.device),
        fresh_blocks=metadata.fresh_blocks if has_fresh else None,
        positions=metadata.positions,
    )


class DecodeStepInputs:
    """Implements `graphs.DecodeInputs`: slots and positions, which recorded kernels read.

    The angles are looked up by the first layer, in its graph.

    Args:
        shape: Of the steps.
    """

    def __init__(self, shape: DecodeShape) -> None:
        self._kv_heads = shape.num_kv_heads
        # One for each row: the operator takes no slot twice.
        rows = np.arange(shape.num_rows) + shape.first_spare * shape.block_size
        heads = (rows // shape.block_size)[:, None] * self._kv_heads + np.arange(self._kv_heads)
        spare = heads * shape.block_size + (rows % shape.block_size)[:, None]
        self._spare_slots = to_device(spare.astype(np.int32).reshape(-1), shape.device)
        self._inputs = StepInputs(
            query_ends=[],
            context_lens=[],
            block_table=torch.empty(0, dtype=torch.int32, device=shape.device),
            slots=self._spare_slots.clone(),
            fresh_blocks=None,
            positions=torch.zeros(shape.num_rows, dtype=torch.int64, device=shape.device),
        )
        self.metadata = _one_token_each(shape)
        self.metadata.once(_key(self._kv_heads), lambda: self._inputs)

    def load(self, metadata: AttentionMetadata) -> None:
        """Put in a step's; other rows write into spare blocks."""
        step, inputs = StepInputs.of(metadata, kv_heads=self._kv_heads), self._inputs
        num_slots = len(step.slots)
        inputs.slots[:num_slots].copy_(step.slots)
        if num_slots < len(inputs.slots):
            inputs.slots[num_slots:].copy_(self._spare_slots[num_slots:])
        inputs.positions[: len(step.positions)].copy_(step.positions)


def _one_token_each(shape: DecodeShape) -> AttentionMetadata:
    """Metadata of rows of which each has its first token."""
    num_rows = shape.num_rows
    ones = np.ones(num_rows, dtype=np.int64)
    return lay_out_attention(
        ones,
        ones,
        np.full(num_rows, shape.first_spare, dtype=np.int32),
        block_size=shape.block_size,
        device=shape.device,
    )
