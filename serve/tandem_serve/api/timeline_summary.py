"""Figures of a timeline: how much was recorded, and the communication that cut steps hid."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem_engine.api.timeline import RankStep, SliceKind, Timeline

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSummary:
    """Figures of one timeline. Times are sums over the ranks."""

    model: str
    num_ranks: int
    num_steps: int
    num_cut_steps: int
    num_slices: int
    """Stages and collectives of all ranks."""
    communication_s: float
    """Time in collectives of cut steps."""
    hidden_s: float
    """The part of it during which the other half computed on the same rank."""
    overlap: float | None
    """Hidden communication over the lesser of communication and computation; None: there was no
    cut step that had both."""


def summary_of(timeline: Timeline, model: str) -> TimelineSummary:
    """The figures of `timeline`, recorded from a replica that serves `model`."""
    steps = timeline.steps
    cut = [step for step in steps if step.halves]
    communication_s = sum(_busy_s(step, "collective") for step in cut)
    lesser_s = min(communication_s, sum(_busy_s(step, "stage") for step in cut))
    hidden_s = sum(map(_hidden_s, cut))
    return TimelineSummary(
        model=model,
        num_ranks=len({step.rank for step in steps}),
        num_steps=len({step.number for step in steps}),
        num_cut_steps=len({step.number for step in cut}),
        num_slices=sum(len(step.slices) for step in steps),
        communication_s=communication_s,
        hidden_s=hidden_s,
        overlap=min(1.0, hidden_s / lesser_s) if lesser_s > 0 else None,
    )


def _busy_s(step: RankStep, kind: SliceKind) -> float:
    return sum(piece.end_s - piece.begin_s for piece in step.slices if piece.kind == kind)


def _hidden_s(step: RankStep) -> float:
    """Seconds of each half's collectives during which the other half computed."""
    return sum(
        _common_s(_intervals(step, "collective", half), _intervals(step, "stage", 1 - half))
        for half in (0, 1)
    )


def _intervals(step: RankStep, kind: SliceKind, half: int) -> list[Interval]:
    """The slices of one kind and half in order, those that touch or overlap joined."""
    intervals = (
        (piece.begin_s, piece.end_s)
        for piece in step.slices
        if (piece.kind, piece.half) == (kind, half)
    )
    return _joined(sorted(intervals))


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for begin, end in intervals:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _common_s(intervals: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Seconds that lie in both; the intervals of each are in order and apart."""
    total, i, j = 0.0, 0, 0
    while i < len(intervals) and j < len(other):
        total += max(0.0, min(intervals[i][1], other[j][1]) - max(intervals[i][0], other[j][0]))
        if intervals[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return total
