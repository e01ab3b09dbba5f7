"""Draws ranks of tp beside one rank: ratios with their goals, and the memory of each rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.parallel.tp_figures import MEMORY_GOAL, RankBytes, Ratios

_DPI: Final = 150
_MB: Final = 10**6


def save_plot(
    figures: Sequence[Ratios], memory: Sequence[RankBytes], file: Path, *, title: str
) -> None:
    """Write a PNG."""
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(10.0, 4.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    speed, held = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_ratios(speed, figures)
    _draw_memory(held, memory)
    for axes in (speed, held):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=_DPI)


def _draw_ratios(axes: Axes, figures: Sequence[Ratios]) -> None:
    for at, row in enumerate(figures):
        low, high = row.quarters
        axes.bar(at, row.ratio, width=0.6, color="#6baed6")
        axes.vlines(at, low, high, color="#08306b")
        axes.hlines(row.goal, at - 0.4, at + 0.4, color="#d94801")
    axes.set_xticks(range(len(figures)), [row.load for row in figures])
    axes.set_ylabel("speed, one rank = 1 (line: quarters; red: goal)")


def _draw_memory(axes: Axes, memory: Sequence[RankBytes]) -> None:
    for row in memory:
        share, beside = row.share / _MB, row.beside / _MB
        axes.bar(row.rank, share, width=0.6, color="#6baed6")
        axes.bar(row.rank, beside, width=0.6, bottom=share, color="#fdae6b")
        axes.hlines(share + MEMORY_GOAL / _MB, row.rank - 0.4, row.rank + 0.4, color="#d94801")
    axes.set_xticks([row.rank for row in memory], [f"rank {row.rank}" for row in memory])
    axes.set_ylabel("MB: weights and KV, beside them (red: goal)")
