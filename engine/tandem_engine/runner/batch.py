"""The flat batch: all tokens of all rows of a step side by side, rows of one token first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.sampling.row import Row

PADDING: Final = 0
"""Stands where a draft was asked for and none came; computed, but never sampled from."""
NO_DRAFTS: Final[Mapping[str, Sequence[int]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBatch:
    """The tensors of one step.

        token_ids   | a | b | c C C |  d d d d d  |  e e e  |      [tokens]
        positions   | 9 |31 |12 . . |  0 1 2 3 4  |  8 9 10 |      [tokens]
        yield_at      0   1   2 3 4                      12        [yielding positions]

    Here C are drafts behind c, and d's chunk is not its last: it yields nothing.
    """

    token_ids: Tensor
    """int64 [tokens]"""
    attention: AttentionMetadata
    """Positions, slots and blocks of the tokens."""
    yield_at: Tensor
    """int64 [yielding positions]: each yielding row's last known token, and its drafts."""
    yielding: Sequence[Row]
    """The rows that yield, in the order of `yield_at`."""
    drafts: Mapping[str, Sequence[int]]
    """Sequence id → its drafts; a row without one has one yielding position."""


def flatten(
    step: Step,
    rows: Mapping[str, Row],
    *,
    block_size: int,
    device: torch.device,
    drafts: Mapping[str, Sequence[int]] = NO_DRAFTS,
) -> FlatBatch:
    """Lay out the tokens of `step`.

    Args:
        step: At least one row.
        rows: All rows of the step, and others.
        block_size: Tokens of a KV block.
        device: Where the tensors go.
        drafts: Sequence id → drafts, at most as many as the step asks for.
    """
    step = _short_rows_first(step)
    token_ids: list[int] = []
    ends: list[int] = []
    yield_at: list[int] = []
    yielding: list[Row] = []
    # Once a row, in every step: what most rows do not need costs them no more than a test.
    for sequence_id, length, start in zip(
        step.sequence_ids, step.num_tokens, step.starts, strict=True
    ):
        row = rows[sequence_id]
        output = row.output
        end = start + length
        num_drafts = step.num_drafts.get(sequence_id, 0) if step.num_drafts else 0
        num_known = len(row.prompt) + len(output)
        if length == 1 and end == num_known and output:
            token_ids.append(output[-1])
        else:
            token_ids += row.tokens_between(start, end)
        ends.append(end)
        if end - num_drafts == num_known:
            yielding.append(row)
            yield_at.append(len(token_ids) - 1)
        if num_drafts:
            of_row = drafts.get(sequence_id, ())
            yield_at += range(len(token_ids), len(token_ids) + len(of_row))
            token_ids += of_row
            token_ids += [PADDING] * (num_drafts - len(of_row))
    return FlatBatch(
        token_ids=_tensor(token_ids, step, device),
        attention=build_attention_metadata(
            query_lens=step.num_tokens,
            context_lens=ends,
            block_tables=step.block_tables,
            block_size=block_size,
            device=device,
        ),
        yield_at=torch.tensor(yield_at, dtype=torch.int64, device=device),
        yielding=yielding,
        drafts=drafts,
    )


def _tensor(token_ids: list[int], step: Step, device: torch.device) -> Tensor:
    if len(token_ids) != step.total_tokens:
        raise ValueError(
            f"the step asks for {step.total_tokens} tokens of its rows, which know only "
            f"{len(token_ids)} of them; this is a bug"
        )
    return torch.tensor(token_ids, dtype=torch.int64, device=device)


def _short_rows_first(step: Step) -> Step:
    """The rows of one token before all others, in which attention computes them together.

    Nearly every step has them so already. Drafts behind a decode row, or a prompt whose last
    token alone was not in the cache, come in between.
    """
    lengths = list(step.num_tokens)
    num_short = lengths.count(1)
    if lengths[:num_short].count(1) == num_short:
        return step
    order = sorted(range(len(lengths)), key=lambda row: lengths[row] != 1)
    pick = itemgetter(*order)
    return replace(
        step,
        sequence_ids=pick(step.sequence_ids),
        num_tokens=pick(step.num_tokens),
        starts=pick(step.starts),
        block_tables=pick(step.block_tables),
    )
