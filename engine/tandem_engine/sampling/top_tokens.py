"""The top tokens of each row, equal ones in the order of the vocabulary."""

from collections.abc import Sequence
from itertools import compress
from math import isnan

import torch
from torch import Tensor

from tandem_engine.device.host_memory import HostCopy


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


class TopTokens:
    """The top tokens of each row with their values, on their way to the host.

    Args:
        table: float32 [rows, vocabulary]; not changed until they are read.
        counts: How many of each row, at most the vocabulary.
    """

    def __init__(self, table: Tensor, counts: Sequence[int]) -> None:
        self._table, self._counts = table, counts
        # One more than asked for: whether the last one is as likely as the next.
        width = min(max(counts, default=0) + 1, table.shape[1])
        values, ids = largest(table, width)
        self._values, self._ids = HostCopy(values), HostCopy(ids)

    def read(self) -> list[list[tuple[int, float]]]:
        """Return them, best first, of equal ones the first; a row with NaN has none."""
        values, ids = self._values.wait().tolist(), self._ids.wait().tolist()
        return [
            self._of_row(row, of_row[0], of_row[1], count)
            for row, (of_row, count) in enumerate(
                zip(zip(ids, values, strict=True), self._counts, strict=True)
            )
        ]

    def _of_row(
        self, row: int, ids: list[int], values: list[float], count: int
    ) -> list[tuple[int, float]]:
        if not count or isnan(values[0]):
            return []
        if count < len(values) and values[count] == values[count - 1]:
            # topk guarantees no order among equals.
            return _at_least(self._table[row], values[count - 1], count)
        pairs = zip(ids[:count], values[:count], strict=True)
        return sorted(pairs, key=_from_the_best)


def _at_least(row: Tensor, floor: float, count: int) -> list[tuple[int, float]]:
    """Return `count` values of at least `floor`, the first of those that equal it."""
    ids = torch.nonzero(row >= floor).flatten()
    values = row[ids]
    if len(ids) > count:
        above = values > floor
        is_first = (~above).cumsum(0) <= count - above.sum()
        ids, values = ids[above | is_first], values[above | is_first]
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return sorted(pairs, key=_from_the_best)


def _from_the_best(pair: tuple[int, float]) -> tuple[float, int]:
    return -pair[1], pair[0]
