"""Draws what a replica held over time, a panel for each quantity."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from benchmarks.soak.series import QUANTITIES, Sample

_DPI: Final = 150


def save_plot(
    samples: Sequence[Sample], changes_s: Sequence[float], file: Path, *, title: str
) -> None:
    """Write a PNG; live changes are thin lines."""
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(9.0, 9.0), layout="constrained")
    panels = figure.subplots(len(QUANTITIES), 1, sharex=True)
    figure.suptitle(title, fontsize=10)
    minutes = [sample.at_s / 60.0 for sample in samples]
    for axes, name in zip(panels, QUANTITIES, strict=True):
        axes.plot(minutes, [sample.values[name] for sample in samples], color="#08306b")
        for at_s in changes_s:
            axes.axvline(at_s / 60.0, color="#fdae6b", linewidth=0.5)
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0.0)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("minutes under load (thin lines: live changes)")
    figure.align_ylabels()
    figure.savefig(file, dpi=_DPI)
