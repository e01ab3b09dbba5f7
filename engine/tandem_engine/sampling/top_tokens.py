"""The top tokens of each row, equal ones in the order of the vocabulary."""

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from tandem_engine.device.host_memory import ints_to_device


def argmax(logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the first of each row's largest logits; NaN counts as the largest.

    Returns:
        int64 [rows], and bool [rows], true where its logit is not finite; None: all are finite.
    """
    if logits.device.type != "cpu":
        best, ids = logits.max(dim=-1)
        return ids, ~torch.isfinite(best)
    # torch compares one number at a time here. And after a forward pass, which has read all of the
    # weights, every function that was not called for a while costs 50 µs: so few of them.
    array = logits.numpy()
    ids = torch.from_numpy(array.argmax(axis=-1))
    are_finite = torch.from_numpy(array.max(axis=-1)).isfinite()
    return ids, None if are_finite.all() else ~are_finite


def top_ids(logits: Tensor, count: int) -> Tensor:
    """Return the tokens of each row's `count` largest logits; of equal ones the first.

    Returns:
        int64 [rows, count], from the largest on. NaN counts as the largest.
    """
    # One more than asked for: whether the last one that stays is as likely as the next.
    values, ids = largest(logits, min(count + 1, logits.shape[1]))
    if ids.shape[1] > count:
        break_ties(logits, values, ids, torch.full((len(logits), 1), count, device=logits.device))
    return ids[:, :count]


def largest(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Of each row the `width` largest logits from the largest on, and their tokens."""
    if width < logits.shape[1]:
        values, ids = logits.topk(width, dim=-1)
        return values, ids
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return values, ids


def break_ties(logits: Tensor, values: Tensor, ids: Tensor, num_kept: Tensor) -> None:
    """Put the first ones of the vocabulary where the last ones that stay are equal to others.

    Args:
        logits: [rows, vocabulary].
        values: [rows, some], the largest of them, from the largest on.
        ids: Their tokens; those of equals are changed.
        num_kept: [rows, 1], how many of them stay.
    """
    last = values.gather(1, num_kept - 1)
    # Where all that were scanned stay, the next one is unknown: taken for equal.
    following = values.gather(1, num_kept.clamp(max=values.shape[1] - 1))
    are_tied = ((following == last) & (last > -torch.inf)).squeeze(1)
    # Read as it is: to ask a device for the places of what is true is to wait twice.
    for row in compress(range(len(logits)), are_tied.tolist()):
        end = int(num_kept[row])
        begin = int((~(values[row] <= last[row])).sum())  # with NaN
        equals = (logits[row] == last[row]).nonzero().flatten()
        ids[row, begin:end] = equals[: end - begin]


def top_tokens(table: Tensor, counts: Sequence[int]) -> list[list[tuple[int, float]]]:
    """Return the `counts` top tokens of each row with their values, best first.

    topk guarantees no order among equals, so all that reach the last value are compared.

    Args:
        table: float32 [rows, vocabulary]. A row with NaN has none.
        counts: One a row, at width the vocabulary.
    """
    width = max(counts, default=0)
    if width == 0:
        return [[] for _ in counts]
    best = table.topk(width, dim=-1).values
    last = ints_to_device([max(0, count - 1) for count in counts], table.device)
    floors = best.gather(1, last.unsqueeze(1))
    return [
        _at_least(row, floor, count) if count else []
        for row, floor, count in zip(table, floors, counts, strict=True)
    ]


def _at_least(row: Tensor, floor: Tensor, count: int) -> list[tuple[int, float]]:
    """Return `count` values of at least `floor`, the first of those that equal it."""
    ids = torch.nonzero(row >= floor).flatten()
    values = row[ids]
    if len(ids) > count:
        above = values > floor
        is_first = (~above).cumsum(0) <= count - above.sum()
        ids, values = ids[above | is_first], values[above | is_first]
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
