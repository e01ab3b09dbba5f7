"""Recordings of steps on one rank: what a timeline is made of."""

from collections.abc import Callable

from tandem_engine.api.timeline import Half, RankStep
from tandem_engine.microbatch.cut import Cut, RefusalReason
from tandem_engine.microbatch.cut import Half as CutHalf
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.step_trace import StepTrace


class Recorder:
    """Records the next steps of one rank; used by the thread that computes them.

    Args:
        rank: The rank, for the timeline.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._num_left = 0
        self._num_seen = 0
        self._is_full: Callable[[], None] = _ignore
        self._steps: list[RankStep] = []

    @property
    def is_on(self) -> bool:
        """True while steps are recorded."""
        return self._num_left > 0

    def begin(self, num_steps: int, is_full: Callable[[], None] | None = None) -> None:
        """Record the next steps, and forget those that were recorded.

        Args:
            num_steps: How many.
            is_full: Called once, when the last one was recorded; it must not raise.
        """
        self._steps, self._num_seen, self._num_left = [], 0, num_steps
        self._is_full = is_full or _ignore

    def skip(self) -> None:
        """Count a step that has no row for this rank."""
        if self.is_on:
            self._count()

    def add(self, batch: FlatBatch, outcome: Cut | RefusalReason | None, trace: StepTrace) -> None:
        """Record a step, where steps are recorded.

        Args:
            batch: Its rows.
            outcome: How it was cut, or why not; None: there is nothing to cut.
            trace: Its jobs, which are done.
        """
        if not self.is_on:
            return
        span, is_cut = trace.span(), isinstance(outcome, Cut)
        self._steps.append(
            RankStep(
                rank=self._rank,
                number=self._num_seen,
                begin_s=span.begin_s,
                end_s=span.end_s,
                num_rows=batch.attention.num_rows,
                num_decode_rows=batch.attention.num_decode_rows,
                num_tokens=len(batch.token_ids),
                halves=_halves(outcome) if isinstance(outcome, Cut) else (),
                whole_because=None if is_cut or outcome is None else str(outcome),
                slices=trace.slices(),
            )
        )
        self._count()

    def end(self) -> tuple[RankStep, ...]:
        """Record no further step; return those that were recorded."""
        steps, self._steps, self._num_left = tuple(self._steps), [], 0
        return steps

    def _count(self) -> None:
        self._num_seen += 1
        self._num_left -= 1
        if not self._num_left:
            self._is_full()


def _halves(cut: Cut) -> tuple[Half, ...]:
    return _half(cut.first), _half(cut.second)


def _half(half: CutHalf) -> Half:
    return Half(num_rows=len(half.rows), num_tokens=half.num_tokens)


def _ignore() -> None:
    """Tell no caller: the rank reports when it is asked to."""
