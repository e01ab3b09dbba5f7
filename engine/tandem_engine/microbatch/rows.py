"""The rows of a step, as far as a cut depends on them: the same arrays on every rank."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """Lengths and blocks of the rows of a flat batch, in its order; see `device.attention`."""

    query_lens: Ints
    """[rows]: new tokens of each row; rows with one token come first."""
    context_lens: Ints
    """[rows]: tokens of each row once the step is done, the new ones included."""
    first_block: Ints
    """[rows + 1]: where the blocks of each row begin in `blocks`."""
    blocks: Int32s
    """Ids of the blocks that hold the rows' contexts, row by row, in token order."""
    block_size: int
    num_decode_rows: int
    """Leading rows with one new token."""
    can_be_parted: Bools
    """[rows]: true for a row of several tokens that yields behind its last one at most. The last
    tokens of a row with drafts yield each: it has to stay whole."""

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.query_lens)

    @cached_property
    def num_tokens(self) -> int:
        """New tokens of all rows."""
        return int(self.query_lens.sum())

    @cached_property
    def begins(self) -> Ints:
        """[rows]: tokens of each row that were computed before the step."""
        return self.context_lens - self.query_lens

    @property
    def has_prefill(self) -> bool:
        """True where a row has several new tokens that are no drafts."""
        return bool(self.can_be_parted.any())


def parted_rows(query_lens: Ints, yield_at: Ints) -> Bools:
    """Return which rows can be in both halves; see `StepRows.can_be_parted`.

    Args:
        query_lens: [rows]: new tokens of each row.
        yield_at: Positions in the flat batch that yield, ascending.
    """
    ends = np.cumsum(query_lens)
    num_yields = np.searchsorted(yield_at, ends) - np.searchsorted(yield_at, ends - query_lens)
    yields_last = np.isin(ends - 1, yield_at, assume_unique=True)
    is_parted: Bools = (query_lens > 1) & ((num_yields == 0) | ((num_yields == 1) & yields_last))
    return is_parted
