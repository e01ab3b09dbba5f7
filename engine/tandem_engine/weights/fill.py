"""Filling parameters from a checkpoint: check all of it first, then copy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from tandem_engine.api.errors import CheckpointError
from tandem_engine.weights.checkpoint import FLOATS, Checkpoint

Progress = Callable[[int, int], None]
"""Called with the bytes of the checkpoint that are loaded, and those that there are to load."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the checkpoint and what becomes of it."""

    name: str
    shape: tuple[int, ...]
    """The shape that it must have."""
    take: Callable[[Tensor], object]
    """Called with it once, when all parts are checked; must not keep it."""
    dtypes: tuple[str, ...] = FLOATS
    """Names of the types that it may have."""
    is_column: bool = False
    """True if a last dimension of 1 may follow its shape."""
    rows: range | None = None
    """Rows to take; None: all."""
    columns: range | None = None
    """Columns to take; None: all."""

    @classmethod
    def copy(cls, name: str, destination: Tensor, dtypes: tuple[str, ...] = FLOATS) -> Self:
        """One that fills `destination`: a parameter, or some rows of one."""
        return cls(name, tuple(destination.shape), destination.copy_, dtypes)

    @classmethod
    def copy_rows(
        cls,
        name: str,
        destination: Tensor,
        rows: range,
        num_rows: int,
        dtypes: tuple[str, ...] = FLOATS,
    ) -> Self:
        """One that fills `destination` with some of the tensor's `num_rows` rows."""
        shape = (num_rows, *destination.shape[1:])
        return cls(name, shape, destination.copy_, dtypes, rows=rows)

    def num_bytes(self, checkpoint: Checkpoint) -> int:
        """Bytes of the file that are taken."""
        entry = checkpoint.entry(self.name)
        if self.rows is not None:
            entry = entry.of_rows(self.rows)
        if self.columns is None:
            return entry.num_bytes
        return entry.num_bytes // self.shape[1] * len(self.columns)


def fill(
    checkpoint: Checkpoint,
    parts: Sequence[Part],
    *,
    is_harmless: Callable[[str], bool],
    progress: Progress | None = None,
) -> None:
    """Hand each part its tensor; most copy it, converted to the type of a parameter.

    Args:
        checkpoint: The source.
        parts: Parts to read; the order does not matter.
        is_harmless: True for a tensor that may be left out although no part names it.
        progress: Called after each tensor, and once before the first.

    Raises:
        CheckpointError: A tensor is missing, of another shape or of a dtype that is not
            understood, or the checkpoint holds one that the model does not have.
    """
    check(checkpoint, parts, is_harmless=is_harmless)
    # In the order of the files, so that a disk reads them from front to back.
    ordered = sorted(parts, key=lambda part: checkpoint.file_position(part.name))
    total = sum(part.num_bytes(checkpoint) for part in parts)
    done = 0
    report = progress or (lambda _done, _total: None)
    report(done, total)
    for part in ordered:
        checkpoint.hand_over(part.name, part.take, rows=part.rows, columns=part.columns)
        done += part.num_bytes(checkpoint)
        report(done, total)


def check(
    checkpoint: Checkpoint, parts: Sequence[Part], *, is_harmless: Callable[[str], bool]
) -> None:
    """Make sure that the checkpoint holds all parts, as they must be, and nothing else.

    Raises:
        CheckpointError: As `fill`.
    """
    for part in parts:
        checkpoint.check(part.name, part.shape, dtypes=part.dtypes, is_column=part.is_column)
    _refuse_unknown(checkpoint, {part.name for part in parts}, is_harmless)


def _refuse_unknown(
    checkpoint: Checkpoint, known: set[str], is_harmless: Callable[[str], bool]
) -> None:
    # A bias or a norm that is not applied makes a model that runs and is wrong, so this is an
    # error and no warning, which is easily missed.
    unknown = sorted(
        name for name in checkpoint.names() if name not in known and not is_harmless(name)
    )
    if unknown:
        others = f" and {len(unknown) - 1} more" if unknown[1:] else ""
        raise CheckpointError(
            f"{checkpoint.path_of(unknown[0])} holds the tensor {unknown[0]}{others}, "
            "which the model that config.json describes does not have; "
            "the weights and config.json do not belong together"
        )
