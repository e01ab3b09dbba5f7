"""Draws overlap and speedup by the share of communication."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.overlap.figures import OVERLAP_GOAL, OVERLAP_GOAL_AT_BALANCE, CaseFigures

_DPI: Final = 150
_MARKERS: Final = {1: "o", 16: "s"}
_COLORS: Final = ("#6baed6", "#08519c", "#fd8d3c", "#a63603")


def save_plot(figures: Sequence[CaseFigures], file: Path, *, title: str) -> None:
    """Write a PNG."""
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(10.0, 4.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    overlap, speedup = figure.subplots(1, 2)
    sizes = sorted({case.case.work.num_tokens for case in figures})
    for number, size in enumerate(sizes):
        color = _COLORS[number % len(_COLORS)]
        for num_prompts in sorted({case.case.work.num_prompts for case in figures}):
            row = sorted(
                (
                    case
                    for case in figures
                    if case.case.work.num_tokens == size
                    and case.case.work.num_prompts == num_prompts
                ),
                key=lambda case: case.share,
            )
            if row:
                _draw(overlap, speedup, row, color=color)
    overlap.hlines(OVERLAP_GOAL, 0.0, 1.6, color="#d94801", linewidth=0.8, linestyle=":")
    overlap.hlines(OVERLAP_GOAL_AT_BALANCE, 0.5, 1.0, color="#d94801", linewidth=0.8)
    overlap.set_ylabel("overlap by wall time (faint: by the timeline; red: goals)")
    overlap.set_ylim(0.0, 1.05)
    speedup.set_ylabel("speedup (faint: its bound)")
    for axes in (overlap, speedup):
        axes.set_xlabel("communication over computation")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    if figures:
        speedup.legend(fontsize=8)
    figure.savefig(file, dpi=_DPI)


def _draw(overlap: Axes, speedup: Axes, row: Sequence[CaseFigures], *, color: str) -> None:
    work = row[0].case.work
    shares = [case.share for case in row]
    marker = _MARKERS.get(work.num_prompts, "x")
    prompts = "one prompt" if work.num_prompts == 1 else f"{work.num_prompts} prompts"
    label = f"{work.num_tokens:,} tokens, {prompts}"
    by_wall = [case.wall_overlap for case in row]
    by_timeline = [case.timeline_overlap for case in row]
    speedups, bounds = [case.speedup for case in row], [case.bound for case in row]
    for axes, strong, faint in ((overlap, by_wall, by_timeline), (speedup, speedups, bounds)):
        axes.plot(shares, strong, marker=marker, color=color, label=label)
        axes.plot(shares, faint, marker=marker, color=color, alpha=0.3, linestyle="--")
