"""A timeline of steps: what each stream of each rank did, and when; plain data."""

from dataclasses import dataclass
from typing import Final, Literal

SliceKind = Literal["stage", "collective"]

MAX_TIMELINE_STEPS: Final = 512
"""Steps of one timeline at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSlice:
    """A stage or a collective on one stream. Slices of one stream do not overlap."""

    stream: str
    """The stream, as `compute` and `communication`, or `micro-batch 0` and `micro-batch 1`."""
    kind: SliceKind
    name: str
    """The stage (`attention 3`), or the operation of the collective behind it (`all_reduce`)."""
    half: int | None
    """The half of the step, 0 or 1; None: the step is whole."""
    begin_s: float
    """Seconds of `time.perf_counter`, which all processes of one host share."""
    end_s: float
    num_bytes: int = 0
    """Collectives: bytes of the rank's tensor."""
    after: tuple[int, ...] = ()
    """Places, in `RankStep.slices`, of the slices of other streams that it waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The part of a step that one micro-batch computes."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One step on one rank."""

    rank: int
    number: int
    """Steps before it in the timeline; the same step has one number on all ranks."""
    begin_s: float
    end_s: float
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    halves: tuple[Half, ...]
    """Two of a step that was cut; none of a whole one."""
    whole_because: str | None
    """Reason for which the step is whole, as the metric has it (`off` without micro-batches, too);
    None: it was cut, or the replica has one rank."""
    slices: tuple[TimelineSlice, ...]
    """In the order in which they were begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The recorded steps, by number, then by rank."""

    steps: tuple[RankStep, ...]
