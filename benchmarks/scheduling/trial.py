"""Results of policies on the real engine, and the verdict over all repeats. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.scheduling.capacity import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One load with one policy in one repeat."""

    policy: str
    is_static: bool
    repeat: int
    load_share: float
    """Its rate, as a share of what the machine can do."""
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Goodput of the SLO budget over the best static chunk's of the same repeat."""

    ratios: Sequence[float]
    """One a repeat; each policy at the load where its goodput was highest."""
    sustained_ratios: Sequence[float]
    """The same among the loads that were sustained, where both sustained one."""

    @property
    def median(self) -> float:
        """The middle one; 0 without any."""
        return median(self.ratios) if self.ratios else 0.0


def verdict(trials: Sequence[Trial]) -> Verdict:
    """Compare the policies within each repeat."""
    repeats = sorted({trial.repeat for trial in trials})
    ratios = [_ratio(trials, repeat, sustained=False) for repeat in repeats]
    sustained = [_ratio(trials, repeat, sustained=True) for repeat in repeats]
    return Verdict(
        ratios=[ratio for ratio in ratios if ratio is not None],
        sustained_ratios=[ratio for ratio in sustained if ratio is not None],
    )


def _ratio(trials: Sequence[Trial], repeat: int, *, sustained: bool) -> float | None:
    taken = [
        trial
        for trial in trials
        if trial.repeat == repeat and (trial.run.sustained or not sustained)
    ]
    best_static = max((trial.run.goodput for trial in taken if trial.is_static), default=0.0)
    best_slo = max((trial.run.goodput for trial in taken if not trial.is_static), default=0.0)
    return best_slo / best_static if best_static else None
