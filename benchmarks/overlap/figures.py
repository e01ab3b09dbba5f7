"""Figures of a case: overlap, speedup, its bound, and the goals. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Final, Self

from benchmarks.overlap.cases import Case, reachable_overlap
from tandem_engine.microbatch.overlap import StepOverlap

PROMISED: Final = 0.7
OVERLAP_GOAL_AT_BALANCE: Final = 0.9
"""Where communication is a half to the whole of computation."""
OVERLAP_GOAL: Final = 0.8
BOUND_GOAL: Final = 0.93
"""The speedup over the one that is possible."""
MOST_LOSS: Final = 0.02
_BALANCE: Final = (0.5, 1.0)
_TOLERANCE: Final = 0.1
"""By which a share may be off its aim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One step, on one rank or on all."""

    wall_s: float
    overlap: StepOverlap
    is_cut: bool

    @classmethod
    def of_ranks(cls, ranks: Sequence[Self]) -> Self:
        """The time of the slowest, and the mean of what they have measured of themselves.

        A rank that is early waits for the others, and counts that as communication: neither alone
        has the figures of both.
        """
        of = [rank.overlap for rank in ranks]
        return cls(
            wall_s=max(rank.wall_s for rank in ranks),
            overlap=StepOverlap(
                compute_s=fmean(overlap.compute_s for overlap in of),
                communication_s=fmean(overlap.communication_s for overlap in of),
                exposed_s=fmean(overlap.exposed_s for overlap in of),
            ),
            is_cut=all(rank.is_cut for rank in ranks),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFigures:
    """Medians of one case; seconds."""

    case: Case
    rate: float | None
    """Bits a second; None: loopback."""
    whole_s: float
    halves_s: float
    compute_s: float
    """Of a whole step, as are those of communication."""
    communication_s: float
    halves_compute_s: float
    """Of both halves together, communication beside them."""
    timeline_overlap: float
    """Hidden communication over what could be hidden, as the cut steps' timeline has it."""
    was_cut: bool
    """False: what was to be cut stayed whole, and nothing here means anything."""

    @classmethod
    def of(
        cls, case: Case, whole: Sequence[Timed], halves: Sequence[Timed], *, rate: float | None
    ) -> Self:
        """The figures of the steps of one case."""
        return cls(
            case=case,
            rate=rate,
            whole_s=median(step.wall_s for step in whole),
            halves_s=median(step.wall_s for step in halves),
            compute_s=median(step.overlap.compute_s for step in whole),
            communication_s=median(step.overlap.communication_s for step in whole),
            halves_compute_s=median(step.overlap.compute_s for step in halves),
            timeline_overlap=median(
                step.overlap.hidden_s / max(step.overlap.hideable_s, 1e-9) for step in halves
            ),
            was_cut=all(step.is_cut for step in halves),
        )

    @property
    def whole(self) -> StepOverlap:
        """A whole step; nothing of its communication is hidden."""
        return StepOverlap(
            compute_s=self.compute_s,
            communication_s=self.communication_s,
            exposed_s=self.communication_s,
        )

    @property
    def share(self) -> float:
        """Communication over computation, as measured."""
        return self.communication_s / self.compute_s

    @property
    def wall_overlap(self) -> float:
        """Time that a step has saved, over the lesser of communication and computation.

        Less than the timeline's: halves compute longer than the whole, and that is in it.
        """
        return (self.whole_s - self.halves_s) / min(self.communication_s, self.compute_s)

    @property
    def reachable(self) -> float:
        """The overlap that stages of these lengths allow, were nothing lost on the way."""
        work = self.case.work
        return reachable_overlap(work.halves, work.num_layers, self.share)

    @property
    def tail_s(self) -> float:
        """The second half's last sum, which has nothing beside it."""
        return self.communication_s / (2 * self.case.work.num_sums)

    @property
    def speedup(self) -> float:
        """Whole over cut: above 1, cutting is faster."""
        return self.whole_s / self.halves_s

    @property
    def bound(self) -> float:
        """The speedup of a step that takes the longer of both, and the tail."""
        return self.whole_s / (max(self.compute_s, self.communication_s) + self.tail_s)

    @property
    def of_bound(self) -> float:
        """Share of the possible speedup."""
        return self.speedup / self.bound

    @property
    def halves_cost(self) -> float:
        """By how much the halves compute longer than the whole."""
        return self.halves_compute_s / self.compute_s - 1.0

    @property
    def overlap_goal(self) -> float:
        """The overlap that is aimed at."""
        low, high = _BALANCE
        share = self.share
        if low * (1 - _TOLERANCE) <= share <= high * (1 + _TOLERANCE):
            return OVERLAP_GOAL_AT_BALANCE
        return OVERLAP_GOAL

    def missed(self) -> list[str]:
        """The goals that are missed; empty: all are met."""
        missed = []
        if not self.was_cut:
            return ["not cut"]
        if min(self.timeline_overlap, self.wall_overlap) < self.overlap_goal:
            is_reachable = self.reachable >= self.overlap_goal
            missed.append("overlap" if is_reachable else "overlap (beyond reach)")
        if self.of_bound < BOUND_GOAL:
            missed.append("speedup")
        if self.speedup < 1.0 - MOST_LOSS:
            missed.append("slower")
        return missed

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        derived = (
            "share",
            "wall_overlap",
            "reachable",
            "tail_s",
            "speedup",
            "bound",
            "of_bound",
            "halves_cost",
            "overlap_goal",
        )
        own = {**asdict(self), "missed": self.missed()}
        return own | {name: getattr(self, name) for name in derived}
