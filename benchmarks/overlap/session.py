"""The benchmark from its settings to its files: link, ranks, rates, steps, figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, Final

from benchmarks.overlap.cases import Case, Work, cut_by, fitting, grid, rate_for, seconds_of
from benchmarks.overlap.figures import CaseFigures, Timed
from benchmarks.overlap.link import LOOPBACK_ENDS, ShapedLink, link_or_none
from benchmarks.overlap.pair import RankPair
from benchmarks.overlap.plot import save_plot
from benchmarks.overlap.report import document, table_of
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.result import begin, result_console, status_line, title_of, write_result
from benchmarks.serving.session import exit_on_sigterm
from tandem_engine.microbatch.overlap import StepOverlap
from tandem_engine.microbatch.prices import CutPrices

_FAST: Final = 40e9
"""Bits a second of a link that no rank waits for."""
_CALIBRATED_TOKENS: Final = 128

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the benchmark; see the command line."""

    tokens: tuple[int, ...]
    shares: tuple[float, ...]
    prompts: tuple[int, ...]
    only: tuple[str, ...]
    """Parts of cases' names; none: all."""
    num_layers: int | None
    """None: by the tokens."""
    repeats: int | None
    """None: by the tokens."""
    minutes: float
    """0: as many as it takes."""


def run_all(settings: Settings, *, out: Path | None) -> None:
    """Measure, show, write.

    Raises:
        BenchmarkError: It cannot be measured.
    """
    facts = begin(out)
    console = result_console()
    figures: list[CaseFigures] = []
    try:
        with exit_on_sigterm(), link_or_none(console.print) as link:
            facts["link"] = "loopback" if link is None else "shaped"
            _measure_all(settings, link, figures, say=console.print)
    finally:
        # Also after Ctrl-C: a case takes minutes.
        if figures:
            console.print(table_of(figures))
            if out is not None:
                _write(out, facts, settings, figures)


def _measure_all(
    settings: Settings, link: ShapedLink | None, figures: list[CaseFigures], *, say: Note
) -> None:
    """Add the figures of each case as it has been measured."""
    ends = LOOPBACK_ENDS if link is None else link.ends
    with RankPair.opened(ends) as pair, status_line() as note:
        session = _Session(pair, link, note)
        cases = session.plan(settings, say)
        for measured in session.measure(cases):
            figures.append(measured)
            note(f"{len(figures)}/{len(cases)}  {_in_words(measured)}")


def _write(
    out: Path, facts: dict[str, Any], settings: Settings, figures: Sequence[CaseFigures]
) -> None:
    write_result(
        out,
        document(figures, facts=facts, settings=asdict(settings)),
        lambda file: save_plot(figures, file, title=title_of(facts, "Micro-batches")),
    )


class _Session:
    """The ranks, the link, and what a step has been measured to compute."""

    def __init__(self, pair: RankPair, link: ShapedLink | None, note: Note) -> None:
        self._pair = pair
        self._link = link
        self._note = note
        self._compute_s: dict[Work, float] = {}
        self._prices: dict[Work, CutPrices] = {}
        self._s_per_operation = 0.0
        self._seconds_to_aim_at = 1.0

    def plan(self, settings: Settings, say: Note) -> list[Case]:
        """Choose the cases that fit the time, and say how long they take."""
        cases = grid(
            tokens=settings.tokens,
            shares=settings.shares if self._link else (None,),
            prompts=settings.prompts,
            num_layers=settings.num_layers,
            repeats=settings.repeats,
            only=settings.only,
        )
        if not cases:
            raise WrongUsage(f"--only {settings.only[0]} is no part of any case's name.")
        self._calibrate(min(case.work.num_layers for case in cases))
        compute_s = {case.work: self._predicted(case.work) for case in cases}
        budget_s = settings.minutes * 60 or inf
        taken, left_out = fitting(cases, compute_s, budget_s)
        if not taken:
            shortest = min(seconds_of([case], compute_s) for case in cases)
            raise BenchmarkError(
                f"No case takes less than {shortest / 60:.0f} minutes here; give --minutes more, "
                "or --tokens or --layers less."
            )
        total_s = seconds_of(taken, compute_s)
        say(f"{len(taken)} cases take about {total_s / 60:.0f} minutes on this machine.")
        if left_out:
            rest_s = seconds_of(left_out, compute_s)
            names = "; ".join(case.name for case in left_out)
            say(
                f"Left out for --minutes {settings.minutes:g}, as they would take "
                f"{rest_s / 60:.0f} more: {names}."
            )
        return taken

    def measure(self, cases: Sequence[Case]) -> Iterator[CaseFigures]:
        """The figures of each case, one model after the other."""
        for num_layers, of_model in groupby(cases, key=lambda case: case.work.num_layers):
            group = list(of_model)
            self._build(num_layers, max(case.work.num_tokens for case in group))
            for case in group:
                if case.work not in self._compute_s:
                    self._warm_up(case.work)
                yield self._measure(case)

    def _warm_up(self, work: Work) -> None:
        """Have steps of both kinds take their memory, and learn what a whole one takes of what.

        What the kernel clears for the first cut step would count as the halves' computation, and
        the first share be aimed at by what small steps have taken.
        """
        self._note(f"{work.in_words}: warming up")
        if self._link is not None:
            self._link.set_rate(_FAST)
        self._pair.compute(work, cut_by=cut_by(work, compute_s=0.0, in_many_s=None))
        compute_s = self._compute_s[work] = self._pair.compute(work).overlap.compute_s
        in_many_s = None
        if work.num_prompts == 1:
            in_many_s = self._pair.compute(work.in_many_prompts).overlap.compute_s
        self._prices[work] = cut_by(work, compute_s=compute_s, in_many_s=in_many_s)

    def _measure(self, case: Case) -> CaseFigures:
        rate = self._set_rate(case)
        whole: list[Timed] = []
        halves: list[Timed] = []
        for number in range(case.repeats):
            # In turns, so that load which comes and goes meets both.
            for is_cut in (False, True) if number % 2 == 0 else (True, False):
                self._note(f"{case.name}: {'cut' if is_cut else 'whole'} step {number + 1}")
                prices = self._prices[case.work] if is_cut else None
                (halves if is_cut else whole).append(self._pair.compute(case.work, cut_by=prices))
        figures = CaseFigures.of(case, whole, halves, rate=rate)
        self._learn(case, figures.whole)
        return figures

    def _set_rate(self, case: Case) -> float | None:
        """Have the link send at the rate that gives a case's share, as well as is known by now."""
        if self._link is None or case.share is None:
            return None
        seconds = case.share * self._predicted(case.work)
        rate = rate_for(case.work, seconds * self._seconds_to_aim_at)
        self._link.set_rate(rate)
        return rate

    def _learn(self, case: Case, measured: StepOverlap) -> None:
        """Learn from a whole step what it computes, and what a link makes of a rate.

        Communication is not bytes over rate alone: the calls cost, and the link gives bursts.
        """
        self._compute_s[case.work] = measured.compute_s
        if self._link is None or case.share is None:
            return
        aimed_at = case.share * self._predicted(case.work)
        ratio = min(2.0, max(0.5, aimed_at / measured.communication_s))
        self._seconds_to_aim_at *= ratio

    def _calibrate(self, num_layers: int) -> None:
        """Measure small steps: what this machine computes in a second, and what a rate is worth."""
        work = Work(num_tokens=_CALIBRATED_TOKENS, num_prompts=1, num_layers=num_layers)
        self._note("small steps, to know this machine")
        self._build(num_layers, work.num_tokens)
        self._warm_up(work)
        self._s_per_operation = self._compute_s[work] / work.operations
        case = Case(work=work, share=1.0, repeats=1)
        if self._set_rate(case) is not None:
            self._learn(case, self._pair.compute(work).overlap)

    def _predicted(self, work: Work) -> float:
        """Seconds that a step computes: as measured, or else by its operations."""
        return self._compute_s.get(work, self._s_per_operation * work.operations)

    def _build(self, num_layers: int, num_tokens: int) -> None:
        self._note(f"making a model with {num_layers} layers")
        self._pair.build(num_layers, num_tokens)


def _in_words(figures: CaseFigures) -> str:
    return (
        f"{figures.case.name}: overlap {figures.timeline_overlap:.2f} by the timeline, "
        f"{figures.wall_overlap:.2f} by wall time; speedup {figures.speedup:.3f} of "
        f"{figures.bound:.3f}"
    )
