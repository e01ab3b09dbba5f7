"""The flat batch: all tokens of all rows of a step side by side, decode rows first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.sampling.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBatch:
    """The tensors of one step.

        token_ids   | a | b | c |  d d d d d  |  e e e  |      [tokens]
        positions   | 9 |31 |12 |  0 1 2 3 4  |  8 9 10 |      [tokens]
        yield_at      0   1   2                      10        [rows that yield a token]

    Here d's chunk is not its last: it yields nothing.
    """

    token_ids: Tensor
    """int64 [tokens]"""
    attention: AttentionMetadata
    """Positions, slots and blocks of the tokens."""
    yield_at: Tensor
    """int64 [yielding rows], index of each one's last token in the flat batch"""
    yielding: Sequence[Row]
    """The rows that yield a token, in the order of `yield_at`."""


def flatten(
    step: Step, rows: Mapping[str, Row], *, block_size: int, device: torch.device
) -> FlatBatch:
    """Lay out the tokens of `step`."""
    ids = list(step.num_tokens)
    lengths = [step.num_tokens[request_id] for request_id in ids]
    starts = [step.starts[request_id] for request_id in ids]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    members = [rows[request_id] for request_id in ids]
    token_ids = [
        token
        for row, start, end in zip(members, starts, ends, strict=True)
        for token in row.tokens[start:end]
    ]
    lasts = np.cumsum(lengths) - 1
    yielding = [at for at, row in enumerate(members) if ends[at] == len(row.tokens)]
    return FlatBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        attention=build_attention_metadata(
            query_lens=lengths,
            context_lens=ends,
            block_tables=[step.block_tables[request_id] for request_id in ids],
            block_size=block_size,
            device=device,
        ),
        yield_at=torch.from_numpy(lasts[yielding]).to(device),
        yielding=[members[at] for at in yielding],
    )
