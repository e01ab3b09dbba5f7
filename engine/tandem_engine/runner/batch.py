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
NO_AWAITED: Final[Mapping[Row, int]] = {}


@dataclass(slots=True, kw_only=True)
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
    fed: "Feed | None" = None
    """Tokens that the step before this one yields; None: all are known."""
    is_simple: bool = False
    """Whether every row that yields does so for itself alone, and one token: there are no drafts,
    no beams, and no choices to bring about."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Where tokens go that were not known when the batch was laid out."""

    targets: Tensor | None
    """int64: in `token_ids`; None: all of them, in order."""
    sources: Tensor | None
    """int64: among the tokens that the step before has chosen; None: all of them, in order."""

    def fill(self, token_ids: Tensor, chosen: Tensor | None) -> Tensor:
        """The tokens with those that are known at last.

        Args:
            token_ids: The batch's.
            chosen: By the step before; None: it has failed, and with it the rows that wait for it.
        """
        if chosen is None:
            return token_ids
        # A row whose logits were no numbers has failed too; it needs some token until it is gone.
        if self.targets is None or self.sources is None:
            return chosen.clamp(min=PADDING)
        token_ids[self.targets] = chosen[self.sources].clamp_(min=PADDING)
        return token_ids


def flatten(
    step: Step,
    rows: Mapping[str, Row],
    *,
    block_size: int,
    device: torch.device,
    drafts: Mapping[str, Sequence[int]] = NO_DRAFTS,
    awaited: Mapping[Row, int] = NO_AWAITED,
) -> FlatBatch:
    """Lay out the tokens of `step`.

    Args:
        step: At least one row.
        rows: All rows of the step, and others.
        block_size: Tokens of a KV block.
        device: Where the tensors go.
        drafts: Sequence id → drafts, at most as many as the step asks for.
        awaited: Rows that get a token of the step before this one, which is still computed → its
            place among the tokens of that step.
    """
    step = _short_rows_first(step)
    token_ids: list[int] = []
    ends: list[int] = []
    yield_at: list[int] = []
    yielding: list[Row] = []
    targets: list[int] = []
    sources: list[int] = []
    is_simple = not step.num_drafts
    # Once a row, in every step: what most rows do not need costs them no more than a test.
    for sequence_id, length, start in zip(
        step.sequence_ids, step.num_tokens, step.starts, strict=True
    ):
        row = rows[sequence_id]
        output = row.output
        end = start + length
        num_drafts = step.num_drafts.get(sequence_id, 0) if step.num_drafts else 0
        num_known = len(row.prompt) + len(output)
        if row in awaited:
            num_known += 1
            targets.append(len(token_ids))
            sources.append(awaited[row])
            token_ids.append(PADDING)
        elif length == 1 and end == num_known and output:
            token_ids.append(output[-1])
        else:
            token_ids += row.tokens_between(start, end)
        ends.append(end)
        if end - num_drafts == num_known:
            yielding.append(row)
            # The first token of a request is also that of its other choices, which it brings about.
            is_simple = is_simple and (row.is_single or row.is_choice_with(num_known))
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
        fed=Feed(_index(targets, device), _index(sources, device)) if targets else None,
        is_simple=is_simple,
    )


def _index(targets: list[int], device: torch.device) -> Tensor:
    return torch.tensor(targets, dtype=torch.int64, device=device)


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
