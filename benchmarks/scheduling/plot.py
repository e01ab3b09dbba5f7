"""Draws the figures: goodput of each policy, and how the cost of a step grows."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.scheduling.comparison import PolicyComparison
from benchmarks.scheduling.cost import StepCost
from benchmarks.scheduling.trial import Trial

_DPI: Final = 150
_STATIC: Final = "#9ecae1"
_SLO: Final = "#41ab5d"
_WIDE: Final = 6.5


def save_comparisons(comparisons: Sequence[PolicyComparison], file: Path, *, title: str) -> None:
    """Write a PNG with one panel for each comparison."""
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(_WIDE, 1.0 + 2.6 * len(comparisons)), layout="constrained")
    panels = figure.subplots(len(comparisons), 1, squeeze=False)
    figure.suptitle(title, fontsize=9)
    for (axes,), comparison in zip(panels, comparisons, strict=True):
        _draw_comparison(axes, comparison)
    figure.savefig(file, dpi=_DPI)


def save_costs(costs: Sequence[StepCost], file: Path, *, title: str) -> None:
    """Write a PNG with a line for each setting, and the goals as crosses."""
    figure = Figure(figsize=(_WIDE, 4.5), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=9)
    for name, group in groupby(costs, key=lambda cost: cost.setting):
        points = list(group)
        running = [cost.num_running for cost in points]
        axes.plot(running, [cost.mean_ms for cost in points], marker="o", label=name)
    goals = {cost.num_running: cost.goal_ms for cost in costs if cost.goal_ms is not None}
    axes.scatter(list(goals), list(goals.values()), marker="x", s=80, color="black", label="goal")
    axes.set_xlabel("running requests")
    axes.set_ylabel("schedule() + complete(), ms of CPU a step")
    axes.legend(fontsize=8, frameon=False)
    _tidy(axes)
    figure.savefig(file, dpi=_DPI)


def save_trials(trials: Sequence[Trial], file: Path, *, title: str) -> None:
    """Write a PNG with the goodput of each policy over the load, the mean of all repeats."""
    figure = Figure(figsize=(_WIDE, 4.5), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=9)
    names = list(dict.fromkeys(trial.policy for trial in trials))
    loads = sorted({trial.load_share for trial in trials})
    for name in names:
        means = [
            fmean(
                trial.run.goodput
                for trial in trials
                if trial.policy == name and trial.load_share == load
            )
            for load in loads
        ]
        axes.plot(loads, means, marker="o", label=name)
    axes.set_xlabel("load, as a share of what a burst got")
    axes.set_ylabel("goodput (req/s)")
    axes.legend(fontsize=8, frameon=False)
    _tidy(axes)
    figure.savefig(file, dpi=_DPI)


def _draw_comparison(axes: Any, comparison: PolicyComparison) -> None:
    values = [entry.goodput for entry in comparison.entries]
    colors = [_STATIC if entry.is_static else _SLO for entry in comparison.entries]
    bars = axes.bar(range(len(values)), values, width=0.7, color=colors)
    axes.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8, padding=2)
    axes.set_xticks(
        range(len(values)),
        [entry.policy.removeprefix("static ") for entry in comparison.entries],
        fontsize=8,
    )
    axes.set_title(comparison.name, fontsize=8)
    axes.set_ylabel("goodput (req/s)", fontsize=8)
    axes.margins(y=0.2)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
