"""The part of a projection of a checkpoint that one rank computes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Some rows, or some columns, of one linear layer of the checkpoint.

    Columns make it row-parallel (Megatron): its results are this rank's part of a sum.
    """

    name: str
    outputs: int
    """Rows of the tensor in the checkpoint."""
    inputs: int
    """Columns of it."""
    rows: range
    columns: range

    @property
    def is_row_parallel(self) -> bool:
        """True if other ranks hold other columns."""
        return len(self.columns) < self.inputs

    @property
    def shape(self) -> tuple[int, int]:
        """Of the tensor in the checkpoint."""
        return self.outputs, self.inputs


def row_slices(projections: Sequence[Projection]) -> list[slice]:
    """The rows of each, in the matrix of all of them."""
    slices, first = [], 0
    for projection in projections:
        slices.append(slice(first, first + len(projection.rows)))
        first += len(projection.rows)
    return slices
