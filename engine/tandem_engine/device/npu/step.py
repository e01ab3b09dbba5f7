"""A step's rows and slots as the operators of an NPU take them: made once, read by each layer."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata
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
        return metadata.once(("npu", kv_heads), partial(_lay_out, metadata, kv_heads))

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
